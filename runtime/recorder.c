#include "runtime/recorder.h"

#include <math.h>

// Device times are rarer than those of the CPU, so each counts for more; less where tokens differ.
static const double cpu_weight = 0.25, device_weight = 0.5, uneven_weight = 0.2;
static const double prior_share = 0.01; // of the round, stands for what was known before
static const double least_scale = 0.1;  // what takes no time to speak of must not seem to change all the time
static const double handover_weight = 0.06, noticeable_handover_us = 500;
static const double forgetting = 0.005; // a round, of a resource that is not seen
static const double handover_forgetting = 0.06;
static const double queue_weight = 0.1, most_queued = 4, queue_forgetting = 0.03;

void atsi_recorder_start(struct atsi_recorder *r) {
    *r = (struct atsi_recorder){.scales = {1, 1, 1, 0}, .link = 1, .queued = 1};
}

void atsi_recorder_adopted(struct atsi_recorder *r) { r->n_rounds = 0; }

void atsi_recorder_look(struct atsi_recorder *r) { r->n_looks = 2; }

bool atsi_recorder_times_device(const struct atsi_recorder *r) {
    bool early = r->n_rounds >= 1 && r->n_rounds <= 3;
    return early || r->n_looks > 0 || r->n_rounds % ATSI_RECORDER_PERIOD == ATSI_RECORDER_PERIOD - 1;
}

static void note(const struct atsi_recorder *r, float *recent_us, double us, double most_us, double weight) {
    double before = *recent_us, slowest = fmax(1, fmax(r->scales.cpu, fmax(r->scales.gpu, r->scales.link)));
    double limit_us = fmax(ATSI_RECORDER_CLIP * before, most_us * slowest);
    if (r->n_rounds == 0) return;
    if (before > 0 && us > limit_us) us = limit_us;
    if (most_us > 0) weight = fmin(weight, uneven_weight);
    *recent_us = (float)(before > 0 ? before + weight * (us - before) : us);
}

void atsi_recorder_note_cpu(const struct atsi_recorder *r, float *recent_us, double us, double most_us) {
    note(r, recent_us, us, most_us, cpu_weight);
}

void atsi_recorder_note_device(const struct atsi_recorder *r, float *recent_us, double us, double most_us) {
    note(r, recent_us, us, most_us, device_weight);
}

struct tally {
    double recent_us, planned_us;
};

static double renew(double before, const struct tally *t, double round_us) {
    double prior_us = prior_share * round_us;
    if (!(t->planned_us > 0)) return before + forgetting * (1 - before);
    return fmax(least_scale, (prior_us * before + t->recent_us) / (prior_us + t->planned_us));
}

static void count(struct tally *t, double planned_us, double share, double recent_us) {
    t->planned_us += planned_us;
    t->recent_us += share * recent_us;
}

void atsi_recorder_end_round(struct atsi_recorder *r, const struct atsi_script_cost *cost, const float *recent_us) {
    struct tally cpu = {0}, gpu = {0}, link = {0};
    const struct atsi_scales s = {r->scales.cpu, r->scales.gpu, r->link, 0};
    for (uint32_t i = 0; i < cost->n_actions; i++) {
        const struct atsi_split_cost *c = &cost->splits[i];
        double expected = c->cpu_us * s.cpu + c->gpu_us * s.gpu + c->link_us * s.link;
        if (!(recent_us[i] > 0) || !(expected > 0)) continue;
        count(&cpu, c->cpu_us, c->cpu_us * s.cpu / expected, recent_us[i]);
        count(&gpu, c->gpu_us, c->gpu_us * s.gpu / expected, recent_us[i]);
        count(&link, c->link_us, c->link_us * s.link / expected, recent_us[i]);
    }
    double round_us = cpu.planned_us + gpu.planned_us + link.planned_us;
    if (round_us > 0) {
        r->scales.cpu = renew(s.cpu, &cpu, round_us);
        r->scales.gpu = renew(s.gpu, &gpu, round_us);
        r->link = renew(s.link, &link, round_us);
        r->scales.link = r->link * r->queued;
    }
    r->n_rounds++;
    if (r->n_looks) r->n_looks--;
}

// ---- what no split shows --------------------------------------------------------------------------------------------

struct atsi_recorder_round atsi_recorder_explain(const struct atsi_recorder *r, const struct atsi_script *script,
                                                 const struct atsi_script_cost *cost,
                                                 const struct atsi_round_times *took) {
    struct atsi_scales prompt = r->scales, unqueued = r->scales;
    prompt.handover_us = 0;
    unqueued.link = r->link;
    struct atsi_recorder_round round = {
        .took = *took, .expected = atsi_script_times(script, cost, &r->scales), .n_handovers = cost->n_handovers};
    round.prompt_us = r->scales.handover_us > 0 ? atsi_script_time(script, cost, &prompt) : round.expected.round_us;
    round.unqueued_waits_us =
        r->queued > 1 ? atsi_script_times(script, cost, &unqueued).transfer_waits_us : round.expected.transfer_waits_us;
    for (uint32_t i = 0; i < script->n_actions; i++) {
        enum atsi_action_kind kind = script->actions[i].kind;
        if (kind == ATSI_ACTION_AWAIT) round.transfers_us += cost->splits[i].link_us * r->scales.link;
        round.n_waits += kind == ATSI_ACTION_WAIT;
        round.n_transfer_waits += kind == ATSI_ACTION_WAIT && atsi_script_waits_for_transfers(script, i);
    }
    return round;
}

// The part of something that makes the round longer: by_us where it takes all_us.
static double seen_part(double by_us, double all_us) { return all_us > 0 ? fmin(1, fmax(0, by_us / all_us)) : 1; }

// Of what the round took longer or shorter than explained, what the CPU waited longer or shorter for transfers: more than for other work of
// the device, which is handed over no faster.
static double left_of_waits(const struct atsi_recorder_round *round) {
    const struct atsi_round_times *took = &round->took, *expected = &round->expected;
    uint32_t n_others = round->n_waits - round->n_transfer_waits;
    double left_us = took->round_us - expected->round_us,
           transfers_us = took->transfer_waits_us - expected->transfer_waits_us,
           others_us = took->waits_us - expected->waits_us - transfers_us,
           waits_us = transfers_us - (n_others ? others_us * round->n_transfer_waits / n_others : 0);
    return left_us > 0 ? fmin(left_us, fmax(0, waits_us)) : fmax(left_us, fmin(0, waits_us));
}

static void note_queue(struct atsi_recorder *r, const struct atsi_recorder_round *round, double left_us) {
    if (!(round->transfers_us > 0)) {
        r->queued += forgetting * (1 - r->queued);
    } else {
        double seen = seen_part(round->expected.transfer_waits_us - round->unqueued_waits_us,
                                round->transfers_us * (1 - 1 / r->queued)),
               kept = 1 + (r->queued - 1) * (1 - queue_forgetting * (1 - seen));
        r->queued = fmin(most_queued, fmax(1, kept + queue_weight * r->queued * left_us / round->transfers_us));
    }
    r->scales.link = r->link * r->queued;
}

// Where a round took longer than even they explain, nothing is forgotten.
static void note_handovers(struct atsi_recorder *r, const struct atsi_recorder_round *round, double left_us) {
    if (round->n_handovers == 0) return;
    double seen = left_us > 0 ? 1
                              : seen_part(round->expected.round_us - round->prompt_us,
                                          r->scales.handover_us * round->n_handovers),
           kept_us = r->scales.handover_us * (1 - handover_forgetting * (1 - seen));
    r->scales.handover_us = fmax(0, kept_us + handover_weight * left_us / round->n_handovers);
}

// Where no other wait tells them from hand-overs: whoever has its turns between the transfers has some in the middle of them, too, and
// slows them down from their beginning to their end. So they wait for no more than that.
static bool may_queue_longer(const struct atsi_recorder *r, const struct atsi_recorder_round *round) {
    return round->n_waits > round->n_transfer_waits || r->queued < r->link;
}

void atsi_recorder_note_round(struct atsi_recorder *r, const struct atsi_recorder_round *round) {
    if (r->n_rounds <= 1 || !(round->expected.round_us > 0)) return;
    double waits_us = left_of_waits(round);
    if (waits_us > 0 && !may_queue_longer(r, round)) waits_us = 0;
    note_handovers(r, round, round->took.round_us - round->expected.round_us - waits_us);
    note_queue(r, round, waits_us);
}

double atsi_scales_deviation(const struct atsi_scales *from, const struct atsi_scales *to) {
    double cpu = fabs(to->cpu / from->cpu - 1), gpu = fabs(to->gpu / from->gpu - 1),
           link = fabs(to->link / from->link - 1);
    double handover = fabs(to->handover_us - from->handover_us) / (noticeable_handover_us + from->handover_us);
    return fmax(fmax(cpu, handover), fmax(gpu, link));
}
