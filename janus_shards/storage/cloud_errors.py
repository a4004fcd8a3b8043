"""What the failures of an object store mean. They are told apart by text and class name, so obstore is not needed
here.
"""

import re
from collections.abc import Callable

from janus_shards.errors import AccessDeniedError, IntegrityError, ObjectNotFoundError, StorageError, TransientError
from janus_shards.storage.credentials import METADATA_HOST

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_BROKEN = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode|Unknown)\b")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_BREAKS = {
    "Timeout": "nothing arrived for too long",
    "Connect": "no connection to the server; check the address, its certificate, the proxy and the network",
}


def store_error(exc: Exception, doing: str, bucket: str, *, writes: bool) -> StorageError:
    """The storage error for one of obstore's, whose text is searched but never quoted: it may hold signatures.

    Args:
        exc: What obstore raised.
        doing: What was tried, and on which object.
        bucket: Bucket, or host of a web server.
        writes: The object was to be written, so a failed condition is a conflict and not a changed object.
    """
    text, name = str(exc), type(exc).__name__
    status, code = (match[1] if (match := pattern.search(text)) else "" for pattern in (_STATUS, _CODE))
    failure = _Failure(name, text, status, code, bucket)
    for meaning in (_missing, _refused, _condition_failed(writes), _unsuitable, _passing):
        error = meaning(failure)
        if error is not None:
            return type(error)(f"{doing}: {error.message}", kind=error.kind)
    return StorageError(f"{doing}: the store failed ({failure.answer or name})")


class _Failure:
    def __init__(self, name: str, text: str, status: str, code: str, bucket: str) -> None:
        self.name, self.text, self.status, self.code, self.bucket = name, text, status, code, bucket
        self.answer = f"HTTP {status} {code}".rstrip() if status else ""


def _missing(failure: _Failure) -> StorageError | None:
    if failure.code == "NoSuchBucket":
        return ObjectNotFoundError(f"bucket {failure.bucket!r} does not exist", kind="no_bucket")
    if failure.name == "FileNotFoundError" or failure.status == "404":
        return ObjectNotFoundError("it does not exist")
    return None


def _refused(failure: _Failure) -> StorageError | None:
    if failure.code in _EXPIRED:
        return AccessDeniedError(f"the keys have expired ({failure.code}); renew them", kind="credentials_expired")
    if METADATA_HOST in failure.text:
        return AccessDeniedError(
            "no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use --anonymous",
            kind="no_credentials",
        )
    if failure.name in ("PermissionDeniedError", "UnauthenticatedError") or failure.status in ("401", "403"):
        return AccessDeniedError(
            f"the store refused ({failure.answer or 'no reason given'}); check the keys, the bucket policy and the "
            "region, and use --anonymous for public buckets or --requester-pays where the reader pays"
        )
    return None


def _condition_failed(writes: bool) -> Callable[[_Failure], StorageError | None]:
    def meaning(failure: _Failure) -> StorageError | None:
        if failure.name not in ("AlreadyExistsError", "PreconditionError") and failure.status not in ("409", "412"):
            return None
        if writes:
            return StorageError(f"somebody else wrote it meanwhile ({failure.answer or failure.name})", kind="conflict")
        return IntegrityError("it changed since it was opened; open the data set again")

    return meaning


def _unsuitable(failure: _Failure) -> StorageError | None:
    if failure.status == "416":
        return IntegrityError("the object ends before that", kind="truncated_shard")
    if failure.name == "NotSupportedError":
        return StorageError("the server does not answer ranged reads", kind="no_ranges")
    if failure.name == "InvalidPathError":
        return StorageError("a key has an empty, '.' or '..' folder name", kind="bad_path")
    if failure.code == "AuthorizationHeaderMalformed" or "redirect" in failure.text.lower():
        return StorageError(f"bucket {failure.bucket!r} lies in another region; name it with --region")
    return None


def _passing(failure: _Failure) -> StorageError | None:
    if failure.status in ("429", "503"):
        return TransientError(f"the store asks for fewer requests ({failure.answer})", kind="throttled")
    if failure.status.startswith("5") or failure.status == "408":
        return TransientError(f"the store failed ({failure.answer})")
    broken = _BROKEN.search(failure.text)
    if broken or "Content-Length" in failure.text:
        return TransientError(_BREAKS.get(broken[1] if broken else "", "the transfer broke off"))
    return None
