"""Every sentence about durability that binds a broker on one host, and the tests that prove it.

Numbered in the order of the specification's page, in our own short words. A test that is named here has to exist: the
files are read, so that one that is renamed or deleted is missed at once. What binds only clusters, and what comes with
the listeners for TCP and HTTP, is listed as that, so that nothing is forgotten silently.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent


class Promise(NamedTuple):
    """``proofs``: tests as ``file::name``, from this directory. ``later``: why there are none yet."""

    number: int
    text: str
    proofs: tuple[str, ...] = ()
    later: str = ""


TABLE = "survival/test_table.py"
WRITE_PATH = "survival/test_write_path.py"
FAILING = "survival/test_failing_disk.py"
POINTS = "survival/test_crash_points.py"
CRASH = "storage/test_crash.py"
RECOVERY = "storage/test_recovery.py"
OFFSETS = "storage/test_offsets.py"
COMMAND_LINE = "cli/test_command_line.py"
SERVE = "cli/test_serve.py"
OPTIONS = "core/test_options.py"
CLUSTER = "of clusters: there is one host here"
HTTP = "comes with the HTTP listener"

PROMISES = (
    # --- the two policies ---
    Promise(1, "A write that succeeded has the guarantee of its topic's durability", (
        f"{TABLE}::test_persisted_messages", f"{TABLE}::test_replicated_messages",
        f"{CRASH}::test_rule_19_every_crash_of_a_workload_is_recovered",
    )),
    Promise(2, "replicated is the default; it waits for the commit and for no barrier", (
        f"{OPTIONS}::test_the_two_policies_are_independent",
        f"{COMMAND_LINE}::test_the_policies_are_independent_and_replicated_by_default",
        f"{WRITE_PATH}::test_a_replicated_write_stays_in_memory_below_the_thresholds_and_no_timer_writes_it",
    )),
    Promise(3, "persisted needs a recoverable copy on stable storage besides", (
        f"{WRITE_PATH}::test_a_persisted_write_is_durable_below_every_threshold",
        f"{CRASH}::test_rule_19_every_crash_of_a_workload_is_recovered",
        f"{POINTS}::test_rule_07_nothing_is_lost_or_doubled_under_producers_of_both_policies",
    )),
    Promise(4, "Both write to disk; they differ in what is complete before the success", (
        f"{WRITE_PATH}::test_each_trigger_writes_what_is_committed",
        f"{FAILING}::test_sigterm_under_load_writes_everything_that_was_acknowledged",
    )),
    Promise(5, "On one host replicated has no second copy: what it acknowledged may be in memory only", (
        f"{TABLE}::test_our_own_row_replicated_messages_survive_sigkill_of_every_process",
        f"{TABLE}::test_a_stored_offset_beyond_lost_messages_is_valid_and_reading_goes_on_behind_it",
    )),
    Promise(6, "More replicas: what a quorum gives", later=CLUSTER),
    # --- selecting one ---
    Promise(7, "Policies are chosen when a topic is created: replicated or persisted, nothing else", (
        f"{OPTIONS}::test_refused_with_4042", f"{COMMAND_LINE}::test_a_policy_that_is_none_is_refused",
    )),
    Promise(8, "They default each by itself: neither inherits the other", (
        f"{OPTIONS}::test_the_two_policies_are_independent",
        f"{COMMAND_LINE}::test_the_policies_are_independent_and_replicated_by_default",
    )),
    Promise(9, "topic create ... --durability persisted --consumer-offset-durability persisted", (
        f"{COMMAND_LINE}::test_the_topic_of_the_specification",
    )),
    Promise(10, "They are no settings of a file and none of the environment", (
        "test_config.py::test_a_file_may_not_set_durability", "test_config.py::test_no_variable_may_set_durability",
        f"{SERVE}::test_durability_is_refused_by_name_in_every_place",
    )),
    Promise(11, "Getting a topic reports the effective values", (
        f"{COMMAND_LINE}::test_the_policies_are_independent_and_replicated_by_default",
        "client/test_administration.py::test_topic_options_and_their_defaults",
        "wire/test_iggy_client.py::test_topics_and_their_options",
    )),
    Promise(12, "They are create-only: an update cannot change them", (
        f"{OPTIONS}::test_create_only_keys_are_refused_in_an_update",
        f"{COMMAND_LINE}::test_durability_cannot_be_updated",
        "client/test_administration.py::test_topics_are_updated_where_they_may_be",
    )),
    Promise(13, "The former topic option enforce_fsync is refused, saying what to use", (
        f"{OPTIONS}::test_former_keys_say_what_to_use",
        f"{COMMAND_LINE}::test_retired_settings_are_refused_by_name_and_say_what_to_use",
        "client/test_administration.py::test_former_options_are_refused_by_name_saying_what_to_use",
    )),
    Promise(14, "The former server setting consumer_offset_enforce_fsync is gone", (
        "test_config.py::test_all_names_that_belong_to_topics",
        f"{SERVE}::test_durability_is_refused_by_name_in_every_place",
    )),
    # --- the write path ---
    Promise(15, "replicated: a batch may stay in the journal in memory after its success", (
        f"{WRITE_PATH}::test_a_replicated_write_stays_in_memory_below_the_thresholds_and_no_timer_writes_it",
    )),
    Promise(16, "replicated: a trigger writes, and success needs no synchronisation", (
        f"{WRITE_PATH}::test_each_trigger_writes_what_is_committed",
        f"{WRITE_PATH}::test_a_threshold_of_one_writes_every_message_and_makes_none_durable",
    )),
    Promise(17, "persisted: commit, write .log and .index, synchronise both and new names, then reply", (
        f"{CRASH}::test_rule_19_every_crash_of_a_workload_is_recovered",
        f"{POINTS}::test_rule_07_nothing_is_lost_or_doubled_under_producers_of_both_policies",
        "storage/test_log_room.py::test_rule_13_a_roll_keeps_its_order",
        f"{FAILING}::test_rule_11_a_persisted_partition_whose_disk_fails_is_poisoned_alone",
    )),
    Promise(18, "persisted: committed batches are flushed below the thresholds too", (
        f"{WRITE_PATH}::test_a_persisted_write_is_durable_below_every_threshold",
    )),
    Promise(19, "persisted is enough: no threshold has to be set with it", (
        f"{WRITE_PATH}::test_a_persisted_write_is_durable_below_every_threshold", f"{TABLE}::test_persisted_messages",
    )),
    Promise(20, "A single replica does without the log of prepared operations", later=CLUSTER),
    Promise(21, "A persisted offset waits for its file and directory", (
        f"{OFFSETS}::test_rule_17_a_crash_at_every_point_keeps_every_confirmed_offset",
        f"{TABLE}::test_persisted_offsets",
        f"{FAILING}::test_rule_11_an_offset_whose_write_fails_is_not_confirmed_and_poisons_the_partition",
    )),
    Promise(22, "Persisting an offset does not flush earlier replicated messages", (
        f"{WRITE_PATH}::test_a_persisted_offset_does_not_write_the_messages_before_it",
    )),
    Promise(23, "Whoever needs both selects both: a persisted offset may outlive its messages", (
        f"{TABLE}::test_a_stored_offset_beyond_lost_messages_is_valid_and_reading_goes_on_behind_it",
        f"{TABLE}::test_replicated_offsets",
    )),
    # --- flush scheduling ---
    Promise(24, "Count, bytes and a full segment flush what is committed", (
        f"{WRITE_PATH}::test_each_trigger_writes_what_is_committed",
    )),
    Promise(25, "Required persistence, capacity pressure and lifecycle flush earlier", (
        f"{WRITE_PATH}::test_each_trigger_writes_what_is_committed",
        f"{WRITE_PATH}::test_a_persisted_write_is_durable_below_every_threshold",
        "storage/test_log_room.py::test_rule_10_rings_come_out_of_one_budget_and_pressure_flushes_the_oldest",
        f"{FAILING}::test_sigterm_under_load_writes_everything_that_was_acknowledged",
    )),
    Promise(26, "There is no periodic flush: a quiet replicated topic stays in memory", (
        f"{WRITE_PATH}::test_a_replicated_write_stays_in_memory_below_the_thresholds_and_no_timer_writes_it",
    )),
    Promise(27, "Lower thresholds do not make replicated persisted", (
        f"{WRITE_PATH}::test_a_threshold_of_one_writes_every_message_and_makes_none_durable",
    )),
    # --- what survives ---
    Promise(28, "The table: end of a process, power, each with each policy", (
        f"{TABLE}::test_persisted_messages", f"{TABLE}::test_replicated_messages", f"{TABLE}::test_persisted_offsets",
        f"{TABLE}::test_replicated_offsets", f"{CRASH}::test_rule_19_every_crash_of_a_workload_is_recovered",
        f"{CRASH}::test_rule_19_every_crash_of_a_recovery_is_recovered",
    )),
    Promise(29, "Completed buffered writes outlive the process in the page cache", (
        f"{WRITE_PATH}::test_what_was_written_outlives_every_process_and_their_memory",
    )),
    Promise(30, "What is in the journal only dies with it: here with the machine, not with the processes", (
        f"{TABLE}::test_our_own_row_replicated_messages_survive_sigkill_of_every_process",
        f"{TABLE}::test_replicated_messages",
    )),
    Promise(31, "The page cache does not help against power failure", (
        f"{CRASH}::test_rule_19_every_crash_of_a_workload_is_recovered",
        "storage/test_log_rules.py::test_rule_02_what_recovery_accepts_survives_the_power_from_then_on",
    )),
    Promise(32, "A graceful shutdown drains and flushes everything committed, whatever the thresholds", (
        f"{FAILING}::test_sigterm_under_load_writes_everything_that_was_acknowledged",
        "processes/test_start_and_stop.py::test_clean_stop_writes_what_no_threshold_has_flushed",
    )),
    Promise(33, "That depends on its finishing with good I/O: otherwise it says so", (
        f"{FAILING}::test_sigterm_whose_final_flush_fails_says_so",
        "storage/test_log_room.py::test_rule_11_a_clean_stop_that_fails_says_so",
    )),
    Promise(34, "A shutdown that is killed in its grace period is a crash", (
        f"{TABLE}::test_persisted_messages", f"{TABLE}::test_replicated_messages",
    )),
    # --- which responses prove it ---
    Promise(35, "The policy applies to the completed operation, not to a submission", (
        f"{WRITE_PATH}::test_a_submission_is_no_confirmation",
        "client/test_producer.py::test_flush_waits_for_everything_so_far_and_close_flushes",
    )),
    Promise(36, "HTTP production: 201 with the policy, 202 for ack=none", later=HTTP),
    Promise(37, "ack=replicated does not override the topic's policy", later=HTTP),
    Promise(38, "Automatic commits are asynchronous: a poll confirms nothing about its offset", (
        f"{WRITE_PATH}::test_a_poll_that_commits_by_itself_proves_nothing_and_an_explicit_commit_does",
    )),
    Promise(39, "An offset that is stored explicitly and awaited is as durable as its policy says", (
        f"{WRITE_PATH}::test_a_poll_that_commits_by_itself_proves_nothing_and_an_explicit_commit_does",
        f"{TABLE}::test_persisted_offsets",
    )),
    # --- recovery ---
    Promise(40, "Recovery validates batches and the partition's identity", (
        f"{RECOVERY}::test_case_c_a_segment_of_another_partition_refuses",
        f"{RECOVERY}::test_case_l_an_intact_record_of_another_incarnation_refuses",
        "formats/test_frozen.py::test_no_flipped_bit_is_believed",
    )),
    Promise(41, "It may cut an incomplete tail and rebuild a missing or torn index", (
        f"{RECOVERY}::test_case_j_damage_at_or_above_the_mark_is_cut_with_the_intact_records_behind_it",
        f"{RECOVERY}::test_an_index_is_rebuilt_from_the_log",
    )),
    Promise(42, "Interior damage and gaps refuse instead, and so do intact records behind damage of durable ones", (
        f"{RECOVERY}::test_case_d_a_missing_segment_between_two_others_refuses",
        f"{RECOVERY}::test_case_k_damage_below_the_mark_refuses_with_the_place",
        f"{RECOVERY}::test_case_k_the_mark_is_found_in_an_intact_record_behind_the_damage",
        f"{RECOVERY}::test_case_m_an_offset_missing_within_a_segment_refuses",
    )),
    Promise(43, "One host cannot fetch a missing copy: that partition is refused, with a remedy; the others serve", (
        f"{RECOVERY}::test_every_letter_has_a_test_and_every_refusal_a_remedy",
        f"{RECOVERY}::test_a_refused_partition_does_not_hold_up_another",
        "client/test_consumer.py::test_a_refused_partition_says_so_to_both_sides_and_the_others_go_on",
        "cli/test_log.py::test_damage_is_named_refused_alone_and_repaired_when_told",
    )),
    Promise(44, "persisted costs synchronisation: both policies can be measured on one's own machine", (
        f"{COMMAND_LINE}::test_the_workloads_are_listed",
        "bench/test_machine.py::test_everything_fits_one_table_and_one_dictionary",
    )),
    Promise(45, "Peers can repair", later=CLUSTER),
)  # fmt: skip


def names_of_tests(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


def test_every_proof_is_a_test_that_exists() -> None:
    missing = []
    for promise in PROMISES:
        for proof in promise.proofs:
            file, _, name = proof.partition("::")
            path = TESTS / file
            if not path.exists() or name not in set(names_of_tests(path)):
                missing.append(f"{promise.number}. {promise.text}: {proof}")
    assert not missing, "\n" + "\n".join(missing)


def test_every_promise_is_proved_or_says_why_not() -> None:
    assert [promise.number for promise in PROMISES] == list(range(1, len(PROMISES) + 1))
    for promise in PROMISES:
        assert bool(promise.proofs) != bool(promise.later), promise.text
        assert promise.later in {"", CLUSTER, HTTP}
        assert len(set(promise.proofs)) == len(promise.proofs), promise.text


def test_the_whole_survival_table_is_there() -> None:
    """Six failures, each with both policies of messages and of stored offsets."""
    from tests.survival.test_table import FAILURES, POLICIES

    assert len(FAILURES) == 6
    names = set(names_of_tests(TESTS / TABLE))
    assert {f"test_{policy}_{what}" for policy in POLICIES for what in ("messages", "offsets")} <= names
