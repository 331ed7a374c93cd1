// script_cost.h: what the splits of a round should take at the speeds that its plan was made for, and the round as a whole. Pure.
//
// A split is an action of the CPU, a run of device actions that the host does not interrupt, or the transfer that an AWAIT waits for.
// The time of a unit (atsi_round_units) is divided among its steps in proportion to the bytes of their matrices and, but for what is fixed,
// to the part of the output that a step computes. Every action of the CPU takes plan->cpu_start_us more.
#ifndef ATSI_RUNTIME_SCHEDULE_SCRIPT_COST_H
#define ATSI_RUNTIME_SCHEDULE_SCRIPT_COST_H

#include "formats/plan.h"
#include "runtime/schedule/round_units.h"
#include "runtime/schedule/script.h"

// What a split asks of each resource.
struct atsi_split_cost {
    float cpu_us, gpu_us, link_us;
    float
        most_us; // of slots that are divided token by token, which differ in what they take: all of them; 0: tokens are alike
};

struct atsi_script_cost {
    uint32_t n_actions;
    struct atsi_split_cost *splits; // [n_actions] at the split's first action, zero elsewhere
    double handover_us;             // from one side to the other
    double
        uneven_us; // of a round: what the sides wait for each other because tokens find more or fewer of their experts resident
    uint32_t n_handovers; // of a round: there and back whenever the host waits for the device
    double link_bytes;    // of weights that a round moves, by copies and in place
    uint32_t n_transfers;
    uint32_t *waits_for; // [n_transfers] of the region's ring (temp_ring.h)
    double *consumed_us; // [n_transfers] scratch of atsi_script_times
};

// How much longer a unit's parts take than its costs at the recorded speeds say; 1 as long as nothing is known.
struct atsi_unit_factors {
    float cpu;
    float in_place; // of what the device reads over the link
};

// Device actions from `first` on that run without the host in between, before the tail or in it.
uint32_t atsi_script_device_run(const struct atsi_script *s, uint32_t first);

// The region's ring as the transfers of a round go through it (temp_ring.h): each of them, one for each AWAIT of the script, waits
// until the one waits_for[i] transfers before it is consumed.
struct atsi_ring_waits {
    uint32_t n_transfers;
    const uint32_t *waits_for; // [n_transfers], copied
};

// `units` of a round of n_tokens at the plan's speeds, NULL: nothing is known, every cost is zero. `ring` NULL: nothing is
// prefetched. Free with atsi_script_cost_free whether it succeeds or not.
enum atsi_status atsi_script_cost_build(const struct atsi_plan *plan, const struct atsi_script *script,
                                        const struct atsi_schedule_unit *units, uint32_t n_tokens,
                                        const struct atsi_ring_waits *ring, struct atsi_script_cost *out,
                                        struct atsi_error *err);
// Prices the same script again, for other times or other residents: allocates nothing.
void atsi_script_cost_renew(const struct atsi_plan *plan, const struct atsi_script *script,
                            const struct atsi_schedule_unit *units, uint32_t n_tokens, struct atsi_script_cost *cost);
void atsi_script_cost_free(struct atsi_script_cost *cost);

// What all splits of a round ask of each resource, and how often the CPU waits for the device.
struct atsi_script_terms {
    double cpu_us, gpu_us, link_us;
    uint32_t n_waits;
};
struct atsi_script_terms atsi_script_terms_of(const struct atsi_script *script, const struct atsi_script_cost *cost);

// What the device's splits took, of recent_us [n_actions] as the recorder keeps it: its busy time in a round.
double atsi_script_device_us(const struct atsi_script *script, const struct atsi_script_cost *cost,
                             const float *recent_us);

// Renews the factors of the units that the script has on the CPU or in place, from what their splits took lately (recent_us
// [n_actions], 0 unknown) against their costs at these speeds. A split of several units counts for each of them.
void atsi_script_unit_factors(const struct atsi_plan *plan, const struct atsi_script *script,
                              const struct atsi_script_cost *cost, const float *recent_us,
                              const struct atsi_scales *scales, struct atsi_unit_factors *factors);

// Whether what the CPU waits for at the WAIT i has a transfer before it: the device awaited one since the mark before.
bool atsi_script_waits_for_transfers(const struct atsi_script *script, uint32_t i);

// A round's.
struct atsi_round_times {
    double round_us;
    double waits_us;          // the CPU's, for the device
    double transfer_waits_us; // of them, those for what has transfers before it
};

// The times of a round among many alike, at these speeds: two clocks, host and device, that meet where the script makes them meet, and
// a copy engine that works ahead as far as the region's ring allows. 0 when nothing is known. One call at a time a cost.
struct atsi_round_times atsi_script_times(const struct atsi_script *script, const struct atsi_script_cost *cost,
                                          const struct atsi_scales *scales);
// The round's alone.
double atsi_script_time(const struct atsi_script *script, const struct atsi_script_cost *cost,
                        const struct atsi_scales *scales);

#endif
