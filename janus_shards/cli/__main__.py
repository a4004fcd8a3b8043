"""``python -m janus_shards.cli``: the command where no script is installed."""

from janus_shards.cli.main import main

if __name__ == "__main__":
    main(prog_name="janus-shards")
