#include "runtime/recorder.h"

#include <math.h>

// Device times are rarer than those of the CPU, so each counts for more; less where tokens differ.
static const double cpu_weight = 0.25, device_weight = 0.5, uneven_weight = 0.2;
static const double prior_share = 0.01; // of the round, stands for what was known before
static const double least_scale = 0.1;  // what takes no time to speak of must not seem to change all the time
static const double handover_weight = 0.06, noticeable_handover_us = 500;
static const double forgetting = 0.005; // a round, of a resource that is not seen
static const double handover_forgetting = 0.06;

void atsi_recorder_start(struct atsi_recorder *r) { *r = (struct atsi_recorder){.scales = {1, 1, 1, 0}}; }

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
    const struct atsi_scales s = r->scales;
    for (uint32_t i = 0; i < cost->n_actions; i++) {
        const struct atsi_split_cost *c = &cost->splits[i];
        double expected = c->cpu_us * s.cpu + c->gpu_us * s.gpu + c->link_us * s.link;
        if (!(recent_us[i] > 0) || !(expected > 0)) continue;
        count(&cpu, c->cpu_us, c->cpu_us * s.cpu / expected, recent_us[i]);
        count(&gpu, c->gpu_us, c->gpu_us * s.gpu / expected, recent_us[i]);
        count(&link, c->link_us, c->link_us * s.link / expected, recent_us[i]);
    }
    double round_us = cpu.planned_us + gpu.planned_us + link.planned_us;
    if (round_us > 0)
        r->scales = (struct atsi_scales){renew(s.cpu, &cpu, round_us), renew(s.gpu, &gpu, round_us),
                                         renew(s.link, &link, round_us), s.handover_us};
    r->n_rounds++;
    if (r->n_looks) r->n_looks--;
}

// The part of what hand-overs take beyond the plan that makes the round longer.
static double seen_part(const struct atsi_recorder *r, double expected_us, double prompt_us, uint32_t n_handovers) {
    double all_us = r->scales.handover_us * n_handovers;
    return all_us > 0 ? fmin(1, fmax(0, (expected_us - prompt_us) / all_us)) : 1;
}

void atsi_recorder_note_round(struct atsi_recorder *r, double round_us, double expected_us, double prompt_us,
                              uint32_t n_handovers) {
    if (r->n_rounds <= 1 || n_handovers == 0 || !(expected_us > 0)) return;
    double left_us = (round_us - expected_us) / n_handovers,
           kept_us = r->scales.handover_us *
                     (1 - handover_forgetting * (1 - seen_part(r, expected_us, prompt_us, n_handovers)));
    r->scales.handover_us = fmax(0, kept_us + handover_weight * left_us);
}

double atsi_scales_deviation(const struct atsi_scales *from, const struct atsi_scales *to) {
    double cpu = fabs(to->cpu / from->cpu - 1), gpu = fabs(to->gpu / from->gpu - 1),
           link = fabs(to->link / from->link - 1);
    double handover = fabs(to->handover_us - from->handover_us) / (noticeable_handover_us + from->handover_us);
    return fmax(fmax(cpu, handover), fmax(gpu, link));
}
