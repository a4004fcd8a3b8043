"""Broken transfers (S): the data arrives whole, or an error says what was tried how often."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import janus_shards as js
from tests.cases.expectations import Case, cases
from tests.cases.scenarios import Digests, dataset_digests, expected_digests, indexed, loader_digests
from tests.conftest import OpenFaultServer
from tools.fault_server import FaultServer, Rule

TIMES = {"first GET": 1, "first two GETs": 2, "first three GETs": 3, "every GET": None}
ENDS = {"reset": "reset", "silence": "stall", "normal close": "close"}


def rule_of(serve: str) -> Rule:
    """The rule that a ``serve`` of a script says in words, for shards."""
    [times] = [times for words, times in TIMES.items() if words in serve]
    [end] = [end for word, end in ENDS.items() if word in serve] or ["finish"]
    part, status, after = (re.search(p, serve) for p in (r"(\d+) %", r"\b([45]\d\d)\b", r"Retry-After (\d+)"))
    return Rule(
        key="*.tar",
        times=times,
        part=int(part[1]) / 100 if part else 1.0,
        end=end,  # type: ignore[arg-type]  # one of the words that Rule checks
        length="chunked" if "chunked" in serve else "exact",
        status=int(status[1]) if status else None,
        retry_after=after[1] if after else None,
    )


def scripts(wanted: Callable[[Rule], bool]) -> list[Any]:
    """Parameters for pytest: (case, rule) of the entries of all scripts, as wanted."""
    found = [(case, entry, rule_of(entry["serve"])) for case in cases("S") for entry in case.expect.get("script", [])]
    return [pytest.param((case, rule), id=f"{case.id}-{entry['name']}") for case, entry, rule in found if wanted(rule)]


def read(server: FaultServer) -> Digests:
    """All samples by random access."""
    return dataset_digests(js.open_dataset(server.url, storage_options=settings(server)))


def stream(server: FaultServer) -> Digests:
    """All samples through the loader."""
    options = js.LoaderOptions(decode=False, tail="uneven")
    return loader_digests(js.open_loader(server.url, batch_size=2, storage_options=settings(server), options=options))


def settings(server: FaultServer) -> dict[str, object]:
    """How to reach the server: default retries, and the stall timeout of the scenario."""
    return {"endpoint_url": server.endpoint, "anonymous": True, "stall_timeout_s": 2}


@pytest.fixture
def script(
    request: pytest.FixtureRequest, tmp_path: Path, fault_server: OpenFaultServer
) -> tuple[Case, Rule, FaultServer]:
    """Case, rule, and a server of the case's shard that breaks transfers by the rule."""
    case, rule = request.param
    return case, rule, fault_server(indexed(case, tmp_path / "bucket"), rule)


WAYS = pytest.mark.parametrize("way", [read, stream], ids=lambda way: str(way.__name__))


@WAYS
@pytest.mark.parametrize(
    "script", scripts(lambda rule: rule.times is not None and rule.retry_after is None), indirect=True
)
def test_broken_transfer_is_mended(
    script: tuple[Case, Rule, FaultServer], way: Callable[[FaultServer], Digests]
) -> None:
    """However the first transfers break, every sample arrives as it was stored, from one version of the shard."""
    case, rule, server = script
    assert way(server) == expected_digests(case)
    gets = server.of("GET", "*.tar")
    assert len(gets) >= (rule.times or 0) + 1
    assert all(each.headers.get("range") and each.headers.get("if-match") for each in gets)


@pytest.mark.slow
@pytest.mark.parametrize("script", scripts(lambda rule: rule.retry_after is not None), indirect=True)
def test_throttled_transfer_waits_as_asked(script: tuple[Case, Rule, FaultServer]) -> None:
    """A store that asks for time gets it: no pause is shorter than Retry-After, each is longer than the one before."""
    case, rule, server = script
    assert read(server) == expected_digests(case)
    refused = [each for each in server.of("GET", "*.tar") if each.status == rule.status]
    after = server.of("GET", "*.tar")[len(refused)]
    times = [each.at_s for each in (*refused, after)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(pauses) == rule.times
    assert min(pauses) >= float(rule.retry_after or 0)
    assert pauses == sorted(pauses)
    assert sum(pauses) < 20


@WAYS
@pytest.mark.parametrize("script", scripts(lambda rule: rule.times is None), indirect=True)
def test_lasting_break_is_reported(
    script: tuple[Case, Rule, FaultServer], way: Callable[[FaultServer], Digests]
) -> None:
    """Where every transfer breaks, the error names the URL and the attempts, and nothing short is delivered."""
    _, _, server = script
    with pytest.raises(js.TransientError) as caught:
        way(server)
    [shard] = {each.key for each in server.of("GET", "*.tar")}
    assert (caught.value.kind, caught.value.shard) == ("transfer_failed", shard)
    assert f"{server.url}/{shard}" in str(caught.value)
    attempts = re.search(r"gave up after (\d+) attempts", str(caught.value))
    assert attempts is not None
    tried = [each for each in server.of("GET", "*.tar") if f"{each.start}-{each.stop}" in str(caught.value)]
    assert len(tried) == int(attempts[1]) > 1


@WAYS
@pytest.mark.parametrize(("status", "error"), [(403, js.AccessDeniedError), (404, js.ObjectNotFoundError)])
@pytest.mark.parametrize("script", scripts(lambda rule: rule.times is None), indirect=True)
def test_refusals_are_not_retried(
    script: tuple[Case, Rule, FaultServer], way: Callable[[FaultServer], Digests], status: int, error: type[Exception]
) -> None:
    """What another try would not mend is asked for once a range."""
    _, rule, server = script
    server.set_rules([Rule(key=rule.key, status=status, times=None)])
    with pytest.raises(error, match=re.escape(server.url)):
        way(server)
    ranges = [(each.start, each.stop) for each in server.of("GET", "*.tar")]
    assert len(ranges) == len(set(ranges)) > 0
