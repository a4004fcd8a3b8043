"""Where the keys of S3 come from: the program, the environment, a profile, the machine. Reads no environment itself."""

import http.client
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from janus_shards.errors import AccessDeniedError, ConfigError
from janus_shards.storage.base import StorageOptions

if TYPE_CHECKING:
    import boto3
    from obstore.store import S3Credential

METADATA_HOST = "169.254.169.254"
# boto3 renews keys when asked, so it is asked often enough to notice that they run out.
_ASK_AGAIN_AFTER = timedelta(minutes=5)


@dataclass(frozen=True)
class BotoProvider:
    """Keys of a boto3 session, renewed by it."""

    session: "boto3.Session"

    @property
    def region(self) -> str | None:
        """Region of the profile."""
        region: str | None = self.session.region_name
        return region

    def __call__(self) -> "S3Credential":
        """The keys of this moment."""
        credentials = self.session.get_credentials()
        if credentials is None:
            raise ConfigError(f"AWS profile {self.session.profile_name!r} has no keys any more")
        keys = credentials.get_frozen_credentials()
        return {
            "access_key_id": str(keys.access_key),
            "secret_access_key": str(keys.secret_key),
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN_AFTER,
        }


def find_keys(bucket: str, options: StorageOptions, env: Mapping[str, str]) -> "Callable[[], S3Credential] | None":
    """Where keys come from; ``None`` where obstore finds them itself (variables, web identity, container, instance).

    Raises:
        AccessDeniedError: There are none anywhere (``no_credentials``).
        ConfigError: A profile needs boto3, which is not installed, or is not defined.
    """
    keys = options.credentials
    if options.anonymous or env.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes", "on"):
        return None
    if keys is not None and not keys.withheld:
        # Not through the configuration, where a session token of the environment would join keys it does not belong to.
        return lambda: {
            "access_key_id": keys.access_key_id,
            "secret_access_key": keys.secret_access_key,
            "token": keys.session_token,
            "expires_at": None,
        }
    if options.profile is None and _has_native_credentials(env):
        return None
    provider = _boto3_provider(options.profile or env.get("AWS_PROFILE"))
    if provider is None and not (options.profile is None and _has_instance_credentials(env)):
        lost = "; keys given in the program do not travel to other processes" if keys is not None else ""
        raise AccessDeniedError(
            f"s3://{bucket}: no credentials found{lost}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a "
            "profile (--profile, needs pip install 'janus-shards[aws]'), or read a public bucket with --anonymous "
            "(storage_options={'anonymous': True})",
            kind="no_credentials",
        )
    return provider


def _has_native_credentials(env: Mapping[str, str]) -> bool:
    chains = (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
    )
    return any(all(env.get(name) for name in chain) for chain in chains)


def _boto3_provider(profile: str | None) -> BotoProvider | None:
    """Keys of a profile, or of boto3's whole chain; ``None`` without boto3 or without keys."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if profile is None:
            return None
        raise ConfigError(f"AWS profile {profile!r} needs boto3: pip install 'janus-shards[aws]'") from None
    try:
        session = boto3.Session(profile_name=profile)
        found = session.get_credentials() is not None
    except BotoCoreError as exc:
        raise ConfigError(f"AWS profile {profile!r}: {exc}") from exc
    return BotoProvider(session) if found else None


def _has_instance_credentials(env: Mapping[str, str]) -> bool:
    """Whether this machine has a metadata service; asked with a short timeout, where obstore would try for minutes."""
    if env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    if env.get("AWS_METADATA_ENDPOINT"):
        return True
    connection = http.client.HTTPConnection(METADATA_HOST, timeout=1.0)
    try:
        connection.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
