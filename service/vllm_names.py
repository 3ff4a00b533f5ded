"""Our metrics a second time, under the names that routers and dashboards made for vLLM look for.

Works on the text of a scrape, so that nothing is counted twice. vLLM's labels come along: the model
and, since there is one engine here, the number 0.
"""

import re

TWINS = {
    "octavo_requests_running": "vllm:num_requests_running",
    "octavo_requests_waiting": "vllm:num_requests_waiting",
    "octavo_kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
    "octavo_cache_config_info": "vllm:cache_config_info",
    "octavo_prompt_tokens_total": "vllm:prompt_tokens_total",
    "octavo_generation_tokens_total": "vllm:generation_tokens_total",
    "octavo_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "octavo_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "octavo_speculative_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "octavo_speculative_hits_total": "vllm:spec_decode_num_accepted_tokens_total",
    "octavo_preemptions_total": "vllm:num_preemptions_total",
    "octavo_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "octavo_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "octavo_request_duration_seconds": "vllm:e2e_request_latency_seconds",
    "octavo_queue_seconds": "vllm:request_queue_time_seconds",
    "octavo_prefill_seconds": "vllm:request_prefill_time_seconds",
    "octavo_decode_seconds": "vllm:request_decode_time_seconds",
    "octavo_request_prompt_tokens": "vllm:request_prompt_tokens",
    "octavo_request_generation_tokens": "vllm:request_generation_tokens",
    "octavo_step_tokens": "vllm:iteration_tokens_total",
}
OUTCOMES, SUCCESS = "octavo_requests_total", "vllm:request_success_total"
REASONS = {
    **{"stop": "stop", "length": "length", "deadline": "length"},
    **{"cancelled": "abort", "error": "error"},
}
"""vLLM's words for how a request ended."""
_OUTCOME = re.compile(rf'{OUTCOMES}{{outcome="(\w+)"}} (\S+)')


def add_twins(scrape: str, model_name: str) -> str:
    """Twins stand below, each family in one piece as the format wants it."""
    labels = f'model_name="{escape(model_name)}",engine="0"'
    families = scrape.split("# HELP ")[1:]
    twins = [
        _twin(family, name, labels)
        for family in families
        if (name := family.partition(" ")[0]) in TWINS
    ]
    return "".join([scrape, *twins, _successes(scrape, labels)])


def _twin(family: str, name: str, labels: str) -> str:
    twin = TWINS[name]
    help, type, samples = family.split("\n", 2)

    def begin(found: re.Match[str]) -> str:
        more = "," if found[2] == "{" else "} "
        return f"{twin}{found[1]}{{{labels}{more}"

    renamed = re.sub(rf"^{name}(\w*)({{| )", begin, samples, flags=re.MULTILINE)
    heads = (line.replace(name, twin, 1) for line in (f"# HELP {help}", type))
    return "\n".join([*heads, renamed])


def _successes(scrape: str, labels: str) -> str:
    totals = dict.fromkeys(REASONS.values(), 0.0)
    for outcome, value in _OUTCOME.findall(scrape):
        totals[REASONS[outcome]] += float(value)
    lines = [
        f'{SUCCESS}{{{labels},finished_reason="{reason}"}} {value}\n'
        for reason, value in totals.items()
    ]
    return "".join([f"# HELP {SUCCESS} Requests by end.\n# TYPE {SUCCESS} counter\n", *lines])


def escape(value: str) -> str:
    """As label values are written."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
