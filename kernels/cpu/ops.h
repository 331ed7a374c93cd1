// ops.h: every operation of the program on the CPU.
#ifndef ATSI_KERNELS_CPU_OPS_H
#define ATSI_KERNELS_CPU_OPS_H

#include "kernels/cpu/pool.h"
#include "kernels/op_call.h"

struct atsi_cpu; // kernels of one ISA with their scratch memory

// isa NULL or "auto": the best that this CPU has; "reference", "avx2", "avxvnni", "avx512": that one, ATSI_BAD_INPUT when the CPU lacks it or
// the name is unknown. Scratch is allocated here for rounds of at most n_tokens_max tokens of the program, for n_threads
// threads; the run functions allocate nothing. Not thread-safe: one run at a time.
enum atsi_status atsi_cpu_create(const char *isa, const struct atsi_program *p, uint32_t n_tokens_max,
                                 uint32_t n_outputs_max, uint32_t n_ctx, int n_threads, struct atsi_cpu **out,
                                 struct atsi_error *err);
void atsi_cpu_free(struct atsi_cpu *cpu); // NULL fine; after the pool that it ran on
const char *atsi_cpu_isa(const struct atsi_cpu *cpu);

// Runs calls[0..n_calls) as if one after the other, in one dispatch of the pool, in phases where one needs another's output.
// pool NULL, or of more threads than the n_threads of atsi_cpu_create: on the calling thread alone. All calls
// belong to one round (its numbers stand still until this returns) and to the program of atsi_cpu_create.
void atsi_cpu_run(struct atsi_cpu *cpu, struct atsi_pool *pool, const struct atsi_op_call *calls, int n_calls);

// Phases of the last run, those of no or one item among them: for tests and measurements.
uint32_t atsi_cpu_n_phases(const struct atsi_cpu *cpu);

// Whether an EXPERTS call of one row, whose slots are divided between device and host (kernels/op_call.h, gpu_slots), leaves the host none.
bool atsi_cpu_has_no_slots(const struct atsi_op_call *call);

#endif
