import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from entmtp_env.hub_remedy import hub_remedy


def http_error(status):
    response = type("Response", (), {"headers": {}, "request": None, "status_code": status})()
    return HfHubHTTPError(f"{status} Client Error", response=response)


def raised(error, cause, explicitly):
    """``error`` as it is when raised while ``cause`` is handled."""
    try:
        try:
            raise cause
        except Exception as handled:
            if explicitly:
                raise error from handled
            raise error  # noqa: B904
    except Exception as caught:
        return caught


@pytest.mark.parametrize("explicitly", [False, True])
@pytest.mark.parametrize(
    ("status", "refused"), [(401, True), (403, True), (404, True), (500, False), (429, False)]
)
def test_what_was_refused_is_told_from_what_was_out_of_reach(status, refused, explicitly):
    for error in (http_error(status), raised(OSError("wrapped"), http_error(status), explicitly)):
        assert ("hf auth login" in hub_remedy("me/it", error)) is refused
        assert ("fetch with: hf download me/it" in hub_remedy("me/it", error)) is not refused


@pytest.mark.parametrize("error", [None, LocalEntryNotFoundError("not in the cache"), ConnectionError()])
def test_without_an_answer_of_the_hub_the_advice_is_to_fetch(error):
    assert hub_remedy("me/it", error) == "fetch with: hf download me/it"


def test_the_page_is_that_of_the_hub_in_use(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://mirror.example")
    assert "see https://mirror.example/me/it:" in hub_remedy("me/it", http_error(403))
