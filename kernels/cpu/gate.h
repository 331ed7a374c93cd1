// gate.h: words that threads of the pool wait on.
#ifndef ATSI_KERNELS_CPU_GATE_H
#define ATSI_KERNELS_CPU_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// A word that threads wait on until it changes, and the number that sleep on it.
struct atsi_gate {
    _Atomic uint32_t value, n_sleeping;
};

// Waiting is in three steps. Spinning covers what threads of one job differ by; yielding, which costs nothing while nobody else
// wants the core, covers a thread that lost its core for a moment, or the sampling of a token between two dispatches; sleeping covers
// the rest. Waking sleepers takes 50 us and more each, so sleep comes late where every thread has a core of its own.
struct atsi_patience {
    int n_spins; // of some 20-50 ns
    double yield_us;
};

static inline void atsi_cpu_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline bool atsi_gate_has_moved(struct atsi_gate *gate, uint32_t old) {
    return atomic_load_explicit(&gate->value, memory_order_acquire) != old;
}

// Returns when the gate's value is no longer `old`; whether spinning was enough. What was written before the gate was opened is seen then.
bool atsi_gate_wait(struct atsi_gate *gate, uint32_t old, const struct atsi_patience *patience);
// Sleeps until the gate's value is no longer `old` or the time is over, perhaps less long.
void atsi_gate_sleep(struct atsi_gate *gate, uint32_t old, double time_us);
// Moves the value and wakes who sleeps.
void atsi_gate_open(struct atsi_gate *gate);

#endif
