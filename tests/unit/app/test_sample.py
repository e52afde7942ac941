"""The bundled sample app does what its tasks say, here and without a server."""

from __future__ import annotations

from decimal import Decimal

from horsies import RetryPolicy, sample


def test_the_sample_is_sound() -> None:
    assert sample.app.check() == []


def test_a_message_is_receipted_or_its_address_refused() -> None:
    assert sample.send_email("ada@example.org", "hello", "you").ok_value.characters == 8
    assert sample.send_email("ada", "hello").err_value.error_code == "ADDRESS_REFUSED"


def test_a_picture_is_made_smaller_and_never_larger() -> None:
    assert sample.resize(sample.Size(width=1280, height=720)).ok_value == sample.Size(width=640, height=360)
    assert sample.resize(sample.Size(width=20, height=10)).ok_value == sample.Size(width=20, height=10)


def test_a_bank_that_is_away_is_worth_another_try() -> None:
    code = sample.charge_card(Decimal(5)).err_value.error_code
    policy = sample.charge_card.task_options.retry_policy
    assert isinstance(policy, RetryPolicy)
    assert code in policy.auto_retry_for
    assert sample.charge_card(Decimal(5), succeeds_on_attempt=1).ok_value == 5


async def test_the_others_do_their_work() -> None:
    assert (await sample.fetch_rate("EUR", latency_s=0)).ok_value == Decimal("2.36")
    assert sample.make_report(seconds=0).is_ok()
    assert sample.import_catalogue(3, seconds_per_page=0).ok_value == 3
