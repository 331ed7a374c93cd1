// What no split of a round shows: how its waits are forecast, and how they tell transfers that queue from hand-overs that are held up.
#include <string.h>

#include "runtime/recorder.h"
#include "tests/support/check.h"

// ---- a round by hand ----------------------------------------------------------------------------------------------

// The CPU waits three times, the second time for work that has a transfer before it, of 300 us. The next round's transfer
// begins when this one is consumed.
struct crowded_round {
    struct atsi_script script;
    struct atsi_action actions[16];
    struct atsi_script_cost cost;
    struct atsi_split_cost splits[16];
    uint32_t waits_for[1];
    double consumed_us[1];
};

static void act(struct crowded_round *r, enum atsi_action_kind kind, float us) {
    uint32_t i = r->script.n_actions++;
    r->actions[i].kind = kind;
    if (kind == ATSI_ACTION_CPU) r->splits[i].cpu_us = us;
    if (kind == ATSI_ACTION_GPU) r->splits[i].gpu_us = us;
    if (kind == ATSI_ACTION_AWAIT) r->splits[i].link_us = us;
    r->script.tail = r->cost.n_actions = r->script.n_actions;
}

static void open_crowded_round(struct crowded_round *r) {
    memset(r, 0, sizeof *r);
    act(r, ATSI_ACTION_CPU, 100);
    act(r, ATSI_ACTION_GPU, 10);
    act(r, ATSI_ACTION_RECORD, 0);
    act(r, ATSI_ACTION_WAIT, 0);
    act(r, ATSI_ACTION_CPU, 50);
    act(r, ATSI_ACTION_AWAIT, 300);
    act(r, ATSI_ACTION_GPU, 20);
    act(r, ATSI_ACTION_CONSUMED, 0);
    act(r, ATSI_ACTION_RECORD, 0);
    act(r, ATSI_ACTION_GPU, 0);
    r->splits[9].link_us = 5; // read in place, beside the wait
    act(r, ATSI_ACTION_WAIT, 0);
    act(r, ATSI_ACTION_CPU, 40);
    act(r, ATSI_ACTION_GPU, 10);
    act(r, ATSI_ACTION_RECORD, 0);
    act(r, ATSI_ACTION_WAIT, 0);
    act(r, ATSI_ACTION_CPU, 10);
    r->waits_for[0] = 1;
    r->script.actions = r->actions;
    r->cost.splits = r->splits;
    r->cost.n_transfers = 1;
    r->cost.waits_for = r->waits_for;
    r->cost.consumed_us = r->consumed_us;
    r->cost.handover_us = 4;
    r->cost.n_handovers = 6;
}

static void check_times(const struct atsi_round_times *t, double round_us, double waits_us, double transfer_waits_us) {
    assert_float_equal(t->round_us, round_us, 1e-6);
    assert_float_equal(t->waits_us, waits_us, 1e-6);
    assert_float_equal(t->transfer_waits_us, transfer_waits_us, 1e-6);
}

// From one transfer's end to the next one's: 300 us, and 20 of what reads it. The other waits are 10 us of work, there and back.
static void waits_are_forecast_with_the_round(void **state) {
    (void)state;
    static const struct {
        struct atsi_scales scales;
        double round_us, waits_us, transfer_waits_us;
    } cases[] = {{{1, 1, 1, 0}, 320, 120, 84}, {{1, 1, 2, 0}, 620, 420, 384}, {{1, 1, 1, 5}, 320, 120, 64}};
    struct crowded_round r;
    open_crowded_round(&r);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct atsi_round_times t = atsi_script_times(&r.script, &r.cost, &cases[k].scales);
        check_times(&t, cases[k].round_us, cases[k].waits_us, cases[k].transfer_waits_us);
    }
    for (uint32_t i = 0, n = 0; i < r.script.n_actions; i++)
        if (r.actions[i].kind == ATSI_ACTION_WAIT)
            assert_int_equal(atsi_script_waits_for_transfers(&r.script, i), n++ == 1);
}

static void rounds_are_explained(void **state) {
    (void)state;
    const struct atsi_round_times took = {700, 500, 400};
    struct atsi_recorder recorder;
    struct crowded_round r;
    open_crowded_round(&r);
    atsi_recorder_start(&recorder);
    recorder.queued = 2;
    recorder.scales = (struct atsi_scales){1, 1, 2, 5};
    struct atsi_recorder_round round = atsi_recorder_explain(&recorder, &r.script, &r.cost, &took);
    check_times(&round.took, 700, 500, 400);
    check_times(&round.expected, 620, 420, 364);
    assert_float_equal(round.prompt_us, 620, 1e-6); // the link is waited for in any case
    assert_float_equal(round.unqueued_waits_us, 64, 1e-6);
    assert_float_equal(round.transfers_us, 600, 1e-6);
    assert_true(round.n_handovers == 6 && round.n_waits == 3 && round.n_transfer_waits == 1);
    recorder.queued = 1;
    recorder.scales.link = 0.1; // the CPU is waited for
    round = atsi_recorder_explain(&recorder, &r.script, &r.cost, &took);
    assert_float_equal(round.expected.round_us, 294, 1e-6);
    assert_float_equal(round.prompt_us, 264, 1e-6);
    assert_float_equal(round.unqueued_waits_us, round.expected.transfer_waits_us, 1e-6);
    assert_float_equal(round.transfers_us, 30, 1e-4);
}

// ---- what is left --------------------------------------------------------------------------------------------------

// A round by which transfers take twice what they are timed to and hand-overs 100 us more, all of which is seen.
static struct atsi_recorder_round seen_round(struct atsi_recorder *recorder, uint32_t n_waits,
                                             uint32_t n_transfer_waits) {
    atsi_recorder_start(recorder);
    recorder->n_rounds = 2;
    recorder->queued = 2;
    recorder->scales = (struct atsi_scales){1, 1, 2, 100};
    return (struct atsi_recorder_round){.took = {50000, 20000, 16000},
                                        .expected = {50000, 20000, 16000},
                                        .prompt_us = 50000 - 40 * 100,
                                        .unqueued_waits_us = 16000 - 10000,
                                        .transfers_us = 20000,
                                        .n_handovers = 40,
                                        .n_waits = n_waits,
                                        .n_transfer_waits = n_transfer_waits};
}

// What the round took longer, and what waits for other work and for transfers did; the part of the first that is put on the queue. The rest is
// the hand-overs'.
static void what_is_left_is_divided_by_the_waits(void **state) {
    (void)state;
    static const struct {
        double left_us, others_us, transfers_us, queue_us;
        uint32_t n_waits, n_transfer_waits;
    } cases[] = {{0, 0, 0, 0, 20, 10},
                 {1000, 0, 1000, 1000, 20, 10},
                 {1000, 0, 5000, 1000, 20, 10}, // no more than the round
                 {1000, 0, -500, 0, 20, 10},
                 {1000, 300, 800, 500, 20, 10}, // as much as other waits is the hand-overs'
                 {1000, 300, 800, 700, 20, 5},
                 {1000, -300, 500, 800, 20, 10},
                 {1000, 0, 700, 0, 10, 10}, // there are no others, and queued is as much as the link is slower
                 {-1000, 0, -700, -700, 10, 10},
                 {1000, 300, 0, 0, 20, 0},
                 {-1000, 0, -1000, -1000, 20, 10},
                 {-1000, 0, -5000, -1000, 20, 10},
                 {-1000, 0, 500, 0, 20, 10},
                 {-1000, -300, -800, -500, 20, 10},
                 {0, 0, 1000, 0, 20, 10}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct atsi_recorder recorder;
        struct atsi_recorder_round round = seen_round(&recorder, cases[k].n_waits, cases[k].n_transfer_waits);
        round.took.round_us += cases[k].left_us;
        round.took.waits_us += cases[k].others_us + cases[k].transfers_us;
        round.took.transfer_waits_us += cases[k].transfers_us;
        atsi_recorder_note_round(&recorder, &round);
        // A tenth of what is missing; timed, the transfers take 10 ms.
        assert_float_equal(recorder.queued, 2 + 0.1 * cases[k].queue_us / 10000, 1e-9);
        assert_float_equal(recorder.scales.handover_us, 100 + 0.06 * (cases[k].left_us - cases[k].queue_us) / 40, 1e-9);
    }
}

// Where there are no other waits, transfers wait for their turn up to as much as the link itself is slower, and only then.
static void without_other_waits_a_queue_follows_the_link(void **state) {
    (void)state;
    for (int slower = 0; slower < 2; slower++) {
        struct atsi_recorder recorder;
        struct atsi_recorder_round round = seen_round(&recorder, 10, 10);
        recorder.link = slower ? 2.5 : 1.5;
        round.took.round_us += 1000;
        round.took.waits_us += 1000;
        round.took.transfer_waits_us += 1000;
        atsi_recorder_note_round(&recorder, &round);
        assert_float_equal(recorder.queued, slower ? 2.01 : 2, 1e-9);
        assert_float_equal(recorder.scales.handover_us, slower ? 100 : 101.5, 1e-9);
    }
}

// Hand-overs that make the round no longer are forgotten, but not in a round that took longer still.
static void hand_overs_are_forgotten_in_rounds_that_are_explained(void **state) {
    (void)state;
    for (int longer = 0; longer < 2; longer++) {
        struct atsi_recorder recorder;
        struct atsi_recorder_round round = seen_round(&recorder, 20, 10);
        round.prompt_us = round.expected.round_us;
        round.took.round_us += longer;
        atsi_recorder_note_round(&recorder, &round);
        assert_float_equal(recorder.scales.handover_us, longer ? 100 + 0.06 / 40 : 94, 1e-9);
    }
}

static void nothing_is_noted_of_rounds_that_say_nothing(void **state) {
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct atsi_recorder recorder;
        struct atsi_recorder_round round = seen_round(&recorder, 20, 10);
        round.took.round_us += 1000;
        round.took.waits_us += 700;
        round.took.transfer_waits_us += 700;
        if (k == 0) recorder.n_rounds = 1;                               // the first one after a change
        if (k == 1) round.expected = (struct atsi_round_times){0, 0, 0}; // times are not known
        if (k == 2) round.n_handovers = 0;
        atsi_recorder_note_round(&recorder, &round);
        assert_true(recorder.scales.handover_us == 100);
        assert_true(k == 2 ? recorder.queued > 2 : recorder.queued == 2);
    }
}

static void a_queue_has_bounds(void **state) {
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        struct atsi_recorder recorder;
        struct atsi_recorder_round round = seen_round(&recorder, 20, 10);
        round.took.round_us += sign * 40000;
        round.took.waits_us += sign * 40000;
        round.took.transfer_waits_us += sign * 40000;
        for (int i = 0; i < 100; i++) atsi_recorder_note_round(&recorder, &round);
        assert_true(recorder.queued == (sign < 0 ? 1 : 4));
        assert_float_equal(recorder.scales.link, recorder.link * recorder.queued, 1e-9);
    }
}

// As long as nothing travels the queue is forgotten as speeds are, and is no part of the link's own.
static void a_queue_that_nothing_stands_in_is_forgotten(void **state) {
    (void)state;
    struct atsi_recorder recorder;
    struct atsi_recorder_round round = seen_round(&recorder, 20, 0);
    struct atsi_split_cost split = {.cpu_us = 100};
    const struct atsi_script_cost cost = {.n_actions = 1, .splits = &split};
    float recent_us = 100;
    round.transfers_us = 0;
    for (int i = 0; i < 100; i++) {
        atsi_recorder_end_round(&recorder, &cost, &recent_us);
        assert_float_equal(recorder.link, 1, 1e-9);
        assert_float_equal(recorder.scales.link, recorder.queued, 1e-9);
        atsi_recorder_note_round(&recorder, &round);
    }
    assert_true(recorder.queued > 1.5 && recorder.queued < 1.7);
}

// A round of 50 ms in which the CPU waits 20 times, ten of these for transfers. These take `queued` times what they were timed to, of which
// the part `seen` makes the waits longer; hand-overs take handover_us more.
static void note_crowded(struct atsi_recorder *recorder, double queued, double handover_us, double seen) {
    const double transfers_us = 25000;
    double known = transfers_us * seen * (recorder->queued - 1), here = transfers_us * seen * (queued - 1),
           known_us = recorder->scales.handover_us;
    struct atsi_recorder_round round = {
        .took = {50000 + here + 40 * handover_us, 10000 + here + 20 * handover_us, 8000 + here + 10 * handover_us},
        .expected = {50000 + known + 40 * known_us, 10000 + known + 20 * known_us, 8000 + known + 10 * known_us},
        .prompt_us = 50000 + known,
        .unqueued_waits_us = 8000 + 10 * known_us,
        .transfers_us = transfers_us * recorder->queued,
        .n_handovers = 40,
        .n_waits = 20,
        .n_transfer_waits = 10};
    atsi_recorder_note_round(recorder, &round);
}

// What the CPU waits longer for transfers than for other work is the link's, the rest the hand-overs'; and either is gone when it is.
static void turns_of_others_are_told_from_handovers(void **state) {
    (void)state;
    static const struct {
        double queued, handover_us;
    } truths[] = {{1, 0}, {1.6, 0}, {1.6, 150}, {1.3, 0}, {1, 0}, {1, 150}, {1, 0}};
    struct atsi_recorder recorder;
    atsi_recorder_start(&recorder);
    recorder.n_rounds = 2;
    for (size_t k = 0; k < sizeof truths / sizeof *truths; k++) {
        for (int i = 0; i < 80; i++) note_crowded(&recorder, truths[k].queued, truths[k].handover_us, 1);
        assert_float_equal(recorder.queued, truths[k].queued, 0.02);
        assert_float_equal(recorder.scales.link, recorder.link * recorder.queued, 1e-9);
        assert_float_equal(recorder.scales.handover_us, truths[k].handover_us, 5);
    }
    for (int i = 0; i < 80; i++) note_crowded(&recorder, 1.6, 0, 1);
    for (int i = 0; i < 120; i++) note_crowded(&recorder, 1.6, 0, 0); // what nobody waits for any more
    assert_true(recorder.queued < 1.05);
}

// Work of the CPU that is held up makes waits shorter and the round no longer: nothing is learnt from that.
static void shorter_waits_of_a_late_cpu_say_nothing(void **state) {
    (void)state;
    struct atsi_recorder recorder;
    atsi_recorder_start(&recorder);
    recorder.n_rounds = 2;
    for (int i = 0; i < 80; i++) note_crowded(&recorder, 1.6, 0, 1);
    struct atsi_recorder_round round = {.took = {50000, 4000, 2000},
                                        .expected = {50000, 10000, 8000},
                                        .prompt_us = 50000,
                                        .unqueued_waits_us = 0,
                                        .transfers_us = 25000,
                                        .n_handovers = 40,
                                        .n_waits = 20,
                                        .n_transfer_waits = 10};
    struct atsi_recorder before = recorder;
    for (int i = 0; i < 80; i++) {
        round.unqueued_waits_us = round.expected.transfer_waits_us - round.transfers_us * (1 - 1 / recorder.queued);
        atsi_recorder_note_round(&recorder, &round);
    }
    assert_float_equal(recorder.queued, before.queued, 1e-6);
    assert_float_equal(recorder.scales.handover_us, before.scales.handover_us, 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_are_forecast_with_the_round),
        cmocka_unit_test(rounds_are_explained),
        cmocka_unit_test(what_is_left_is_divided_by_the_waits),
        cmocka_unit_test(without_other_waits_a_queue_follows_the_link),
        cmocka_unit_test(hand_overs_are_forgotten_in_rounds_that_are_explained),
        cmocka_unit_test(nothing_is_noted_of_rounds_that_say_nothing),
        cmocka_unit_test(a_queue_has_bounds),
        cmocka_unit_test(a_queue_that_nothing_stands_in_is_forgotten),
        cmocka_unit_test(turns_of_others_are_told_from_handovers),
        cmocka_unit_test(shorter_waits_of_a_late_cpu_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
