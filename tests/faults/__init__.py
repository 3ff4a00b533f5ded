"""What goes wrong around a server that runs; docs/operations.md says what comes of it.

Each stands here with the tests that show it; tests/test_cases.py looks whether they are there.
"""

from tests.cases import Case

FAULTS = (
    Case(
        "The engine is killed",
        "test_pressure.py::test_no_answer_shows_that_the_engine_ended",
        "test_client.py::test_streams_outlive_a_killed_engine_with_the_same_tokens",
        "test_client.py::test_a_request_that_kills_the_engine_is_ended_alone",
    ),
    Case(
        "The engine is stopped",
        "test_pressure.py::test_no_answer_shows_that_the_engine_ended",
        "test_client.py::test_a_stuck_step_is_a_death",
        "test_client.py::test_a_silent_engine_that_nobody_restarts_is_stuck",
        "test_ops.py::test_probes",
    ),
    Case(
        "Memory runs out",
        "faults/test_memory.py::test_no_answer_shows_that_memory_ran_out",
        "faults/test_files.py::test_more_cache_than_there_is_memory_is_refused_before_it_is_taken",
    ),
    Case(
        "A client that reads slowly, or nothing",
        "test_pressure.py::test_a_client_who_reads_nothing_takes_little_memory",
        "test_sse.py::test_a_slow_reader_holds_its_stream_back",
    ),
    Case(
        "A client that leaves",
        "test_pressure.py::test_what_nobody_waits_for_is_not_computed",
        "test_client.py::test_leaving_early_cancels_and_frees_the_pages",
        "test_end_to_end.py::test_streams_that_are_left_free_their_pages",
        "test_end_to_end.py::test_a_whole_answer_that_is_left_frees_its_pages",
    ),
    Case(
        "500 clients that come and go at random",
        "test_pressure.py::test_a_storm_of_clients_who_leave_leaves_nothing_behind",
    ),
    Case(
        "1,000 idle connections",
        "security/test_http_guard.py::test_a_thousand_idle_connections_and_many_active_ones",
        "security/test_http_guard.py::test_an_idle_connection_is_closed_after_its_time",
    ),
    Case("The clock jumps", "faults/test_clock.py::test_no_duration_hangs_on_the_wall_clock"),
    Case(
        "A disk that is full, and a log that nobody reads",
        "faults/test_files.py::test_a_full_disk_under_the_log_hurts_no_request",
        "test_logs.py::test_a_line_that_cannot_be_written_is_let_go",
        "faults/test_files.py::test_a_log_that_nobody_reads_hurts_no_request",
    ),
    Case(
        "A root that is read-only",
        "faults/test_files.py::test_nothing_is_written_but_below_the_temporary_folder",
    ),
    Case(
        "Weights, tokenizer or config that are damaged",
        "faults/test_files.py::test_weights_that_are_cut_end_the_server_with_the_reason",
        "test_cli.py::test_a_model_whose_text_side_is_damaged_ends_the_server",
        "test_cli.py::test_a_model_that_cannot_be_run_ends_the_server",
    ),
    Case(
        "A port that is taken",
        "test_cli.py::test_port_taken_is_found_before_anything_is_fetched",
    ),
    Case(
        "SIGTERM under load, during prefill, twice",
        "faults/test_drain.py::test_sigterm_under_load_loses_no_stream",
        "faults/test_drain.py::test_prompts_that_wait_are_drained_too",
        "faults/test_drain.py::test_what_has_no_time_left_ends_with_an_error_event",
    ),
    Case(
        "A proxy that cuts idle connections",
        "faults/test_proxy.py::test_a_silent_stream_is_kept_alive",
    ),
    Case(
        "Probes and scrapes while the engine is busy",
        "faults/test_probes.py::test_nothing_that_probes_ask_waits_for_the_engine",
    ),
    Case(
        "Keys and certificates that change",
        "faults/test_reload.py::test_keys_are_read_again_and_bad_files_change_nothing",
        "faults/test_reload.py::test_tls_and_a_renewed_certificate",
    ),
    Case(
        "A collector of traces that is gone, refuses or never answers",
        "faults/test_collector.py::test_a_collector_that_is_gone_hurts_no_request",
        "faults/test_collector.py::test_a_collector_that_refuses_hurts_no_request",
        "faults/test_collector.py::test_a_collector_that_never_answers_holds_nobody_up",
    ),
)
