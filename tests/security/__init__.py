"""Attacks on a server that anybody can reach, with a model that anybody may have written.

Each stands here with the tests that fail once it is no longer held off; tests/test_cases.py looks
whether they are there.
"""

from tests.cases import Case

CASES = (
    Case(
        "A path that the gate reads otherwise than the routes do",
        "security/test_keys.py::test_all_else_needs_one",
        "security/test_keys.py::test_the_path_that_routes_are_chosen_by_decides",
        "security/test_keys.py::test_targets_on_the_wire",
        "security/test_keys.py::test_no_method_passes_by",
        "test_doors.py::test_a_prefix_opens_no_way_around_the_gate",
    ),
    Case(
        "Keys guessed by the time it takes, or read in a log",
        "security/test_keys.py::test_keys_are_compared_by_digest_in_constant_time",
        "security/test_keys.py::test_keys_are_in_no_log_line_but_their_names_are",
        "test_auth.py::test_what_is_wrong_is_said_without_telling_a_key",
        "test_otel.py::test_no_text_of_a_client_is_in_a_span",
    ),
    Case(
        "Heads of 48 MB, bodies in chunks of a byte, and either that never ends",
        "security/test_http_guard.py::test_48_mb_of_head_are_cut_with_flat_memory",
        "security/test_http_guard.py::test_tiny_chunks_are_read_once_each",
        "security/test_http_guard.py::test_a_slow_head_is_timed_out",
        "security/test_http_guard.py::test_a_slow_body_is_timed_out",
    ),
    Case(
        "Numbers out of all bounds, and 100,000 prompts",
        "security/test_bodies.py::test_a_number_of_any_size_is_taken_or_refused",
        "security/test_bodies.py::test_what_is_no_number_is_refused",
        "security/test_bodies.py::test_what_would_cost_too_much_is_refused_before_it_costs",
    ),
    Case(
        "Prompts that are empty",
        "security/test_bodies.py::test_empty_prompts",
        "security/test_bodies.py::test_empty_chats",
    ),
    Case(
        "Grammars and schemas that cost too much",
        "test_text_grammar.py::test_what_is_meant_to_hurt_is_refused_or_compiles_soon",
        "test_text_grammar.py::test_what_took_too_long_is_refused",
        "test_json_schema.py::test_what_would_cost_too_much_is_refused",
        "test_lark.py::test_hostile_literals_are_read_once",
        "test_compiling.py::test_the_loop_goes_on_meanwhile",
        "test_compiling.py::test_old_verdicts_are_forgotten",
    ),
    Case(
        "Text that makes a parser of tool calls or thoughts go back and forth",
        "test_tool_parser.py::test_hostile_text_is_looked_at_a_bounded_number_of_times",
    ),
    Case(
        "A chat template that runs code, or without end",
        "test_sandbox.py::test_a_template_cannot_leave_the_sandbox",
        "test_sandbox.py::test_a_template_that_takes_too_long_is_cut_off",
        "test_sandbox.py::test_a_template_that_grows_too_large_is_cut_off",
        "test_chat_template.py::test_callers_cannot_take_the_place_of_the_models_own_variables",
    ),
    Case(
        "A model that brings code: pickles, or modules to import",
        "test_project.py::test_nothing_runs_code_that_it_reads",
        "test_safetensors.py::test_pickled_weights_are_never_read",
    ),
    Case(
        "Strangers on the socket between the processes",
        "security/test_engine_ipc.py::test_its_sockets_are_for_this_user_alone",
        "security/test_engine_ipc.py::test_no_bytes_are_more_than_a_word_or_a_refusal",
        "security/test_engine_ipc.py::test_nor_are_words_that_were_tampered_with",
    ),
    Case(
        "One key's prompts found in the cache by another",
        "security/test_engine_ipc.py::test_a_key_never_finds_what_another_has_cached",
    ),
    Case(
        "Files of weights whose lengths and names lie",
        "test_gguf.py::test_a_broken_file_is_refused_by_name_and_reason",
        "test_gguf.py::test_flipped_bytes_end_in_a_header_or_a_refusal",
        "test_gguf.py::test_a_huge_array_that_the_file_does_hold_costs_no_memory",
        "test_safetensors.py::test_a_damaged_file_is_refused",
        "test_safetensors.py::test_an_index_names_only_plain_files_of_its_folder",
        "test_safetensors.py::test_a_link_out_of_the_folder_is_refused",
    ),
    Case(
        "Failures that tell too much, and web pages that reach in",
        "security/test_bodies.py::test_a_failure_of_ours_tells_its_id_and_nothing_else",
        "security/test_bodies.py::test_what_is_sent_as_something_else_is_415",
        "test_doors.py::test_web_pages_get_nothing_unless_they_are_listed",
        "test_doors.py::test_only_its_own_names_are_answered_to",
    ),
    Case(
        "Bodies that aren't quite JSON, and HTTP that isn't quite HTTP",
        "security/test_bodies.py::test_what_is_not_quite_json_is_400",
        "security/test_http_guard.py::test_mutated_requests_are_answered_or_refused",
        "security/test_http_guard.py::test_old_http_gets_bodies_without_chunks",
        "security/test_http_guard.py::test_expect_100_continue",
        "test_http_protocol.py::test_pipelined_requests_are_answered_in_order",
    ),
    Case(
        "A request that has the server connect to somewhere",
        "security/test_outbound.py::test_no_request_makes_the_server_connect_to_anything",
    ),
    Case(
        "Series of metrics that clients make up",
        "security/test_series.py::test_no_series_comes_from_outside",
    ),
)
