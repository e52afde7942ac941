"""The tasks of the sample app, called directly."""

from __future__ import annotations

from decimal import Decimal

from horsies import RetryPolicy, sample


def test_sample_app_is_valid() -> None:
    assert sample.app.check() == []


def test_sample_app_is_named_after_its_module() -> None:
    assert sample.app.name == "horsies.sample"


def test_send_email_returns_receipt_or_error() -> None:
    assert sample.send_email("ada@example.org", "hello", "you").ok_value.characters == 8
    assert sample.send_email("ada", "hello").err_value.error_code == "ADDRESS_REFUSED"


def test_resize_shrinks_but_never_enlarges() -> None:
    assert sample.resize(sample.Size(width=1280, height=720)).ok_value == sample.Size(width=640, height=360)
    assert sample.resize(sample.Size(width=20, height=10)).ok_value == sample.Size(width=20, height=10)


def test_charge_card_retries_connection_errors() -> None:
    code = sample.charge_card(Decimal(5)).err_value.error_code
    policy = sample.charge_card.task_options.retry_policy
    assert isinstance(policy, RetryPolicy)
    assert code in policy.auto_retry_for
    assert sample.charge_card(Decimal(5), succeeds_on_attempt=1).ok_value == 5


async def test_other_sample_tasks_succeed() -> None:
    assert (await sample.fetch_rate("EUR", latency_s=0)).ok_value == Decimal("2.36")
    assert sample.make_report(seconds=0).is_ok()
    assert sample.import_catalogue(3, seconds_per_page=0).ok_value == 3
