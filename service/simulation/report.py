"""What a simulation comes to: a few numbers from a tally, as text for people or as JSON."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from service.simulation.tally import Tally, Tenant


class Quantiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float


class Level(msgspec.Struct, frozen=True):
    mean: float
    max: int


class TenantReport(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    tokens: int
    share_of_due: float | None
    """While others waited too: tokens received, by tokens due; None: never."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds; None where there is nothing to take them from."""

    requests: int
    finished: int
    refused: int
    seconds: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    requests_per_second: float
    ttft: Quantiles | None
    itl: Quantiles | None
    end_to_end: Quantiles | None
    queue: Quantiles | None
    steps: int
    rows: Level
    preemptions: int
    prefix_hit_share: float
    num_pages: int
    pages: Level
    jain_index: float | None
    tenants: dict[str, TenantReport]


def make_report(tally: Tally) -> Report:
    seconds = tally.end or 1.0
    return Report(
        requests=tally.num_requests,
        finished=tally.num_finished,
        refused=tally.num_refused,
        seconds=tally.end,
        prompt_tokens_per_second=tally.num_prompt_tokens / seconds,
        output_tokens_per_second=tally.num_output_tokens / seconds,
        requests_per_second=tally.num_finished / seconds,
        ttft=quantiles(tally.first_token_seconds),
        itl=quantiles(tally.gap_seconds),
        end_to_end=quantiles(tally.total_seconds),
        queue=quantiles(tally.queue_seconds),
        steps=tally.num_steps,
        rows=Level(tally.num_rows / max(1, tally.num_steps), tally.most_rows),
        preemptions=tally.num_preemptions,
        prefix_hit_share=tally.num_hit_tokens / max(1, tally.num_queried_tokens),
        num_pages=tally.num_pages,
        pages=Level(tally.page_seconds / (tally.step_seconds or 1.0), tally.most_pages),
        jain_index=jain_index([t.received / t.due for t in tally.tenants.values() if t.due]),
        tenants={name: _tenant_report(tenant) for name, tenant in tally.tenants.items()},
    )


def _tenant_report(tenant: Tenant) -> TenantReport:
    return TenantReport(
        requests=tenant.num_requests,
        tokens=tenant.num_tokens,
        share_of_due=tenant.received / tenant.due if tenant.due else None,
    )


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """By linear interpolation."""
    return Quantiles(*np.percentile(values, (50, 90, 99)).tolist()) if values else None


def jain_index(shares: Sequence[float]) -> float | None:
    """1: all have the same; 1/n: one of n has it all (Jain, Chiu and Hawe, 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def to_text(report: Report) -> str:
    lines = [
        f"requests      {report.requests:,}: {report.finished:,} finished, "
        f"{report.refused:,} refused, in {report.seconds:,.1f} s",
        f"throughput    {report.prompt_tokens_per_second:,.1f} prompt tokens/s, "
        f"{report.output_tokens_per_second:,.1f} output tokens/s, "
        f"{report.requests_per_second:,.2f} requests/s",
        "",
        f"{'seconds':12}  {'p50':>10}  {'p90':>10}  {'p99':>10}",
        _row("first token", report.ttft),
        _row("between", report.itl),
        _row("end to end", report.end_to_end),
        _row("in the queue", report.queue),
        "",
        f"steps         {report.steps:,}, of {report.rows.mean:.1f} rows, "
        f"{report.rows.max} at most",
        f"preemptions   {report.preemptions:,}",
        f"prefix cache  had {report.prefix_hit_share:.1%} of the prompt tokens",
        f"pages         {report.pages.mean:,.0f} of {report.num_pages:,} held, "
        f"{report.pages.max:,} at most",
        *_tenant_lines(report),
    ]
    return "\n".join(lines)


def _row(name: str, times: Quantiles | None) -> str:
    cells = (times.p50, times.p90, times.p99) if times else ()
    return "  ".join([f"{name:12}", *(f"{cell:10.3f}" for cell in cells)])


def _tenant_lines(report: Report) -> Iterable[str]:
    if len(report.tenants) < 2:
        return
    yield ""
    yield f"{'tenant':20}  {'requests':>10}  {'tokens':>12}  {'got of due':>10}"
    for name, tenant in report.tenants.items():
        share = "" if tenant.share_of_due is None else f"{tenant.share_of_due:.1%}"
        yield f"{name:20}  {tenant.requests:10,}  {tenant.tokens:12,}  {share:>10}"
    if report.jain_index is not None:
        yield f"Jain's index  {report.jain_index:.3f}, while more than one waits"
