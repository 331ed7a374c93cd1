#include "kernels/cpu/gate.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/clock.h"

// A yield that took this long has given the core to somebody else for a time slice. Who sleeps gets it back sooner when woken.
static const double CROWDED_US = 200;

static void futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

bool atsi_gate_wait(struct atsi_gate *gate, uint32_t old, const struct atsi_patience *patience) {
    for (int i = 0; i < patience->n_spins; i++) {
        if (atsi_gate_has_moved(gate, old)) return true;
        atsi_cpu_pause();
    }
    double start_us = atsi_clock_us(), before_us = start_us, now_us = start_us;
    while (now_us - start_us <= patience->yield_us && now_us - before_us <= CROWDED_US) {
        if (atsi_gate_has_moved(gate, old)) return false;
        sched_yield();
        before_us = now_us;
        now_us = atsi_clock_us();
    }
    // The sleeper counts itself before the kernel compares the value; the opener moves the value before it reads the count:
    // in every order of the two, one sees the other.
    atomic_fetch_add(&gate->n_sleeping, 1);
    while (atomic_load(&gate->value) == old) futex(&gate->value, FUTEX_WAIT_PRIVATE, old, NULL);
    atomic_fetch_sub(&gate->n_sleeping, 1);
    return false;
}

void atsi_gate_sleep(struct atsi_gate *gate, uint32_t old, double time_us) {
    struct timespec timeout = {.tv_sec = (time_t)(time_us * 1e-6)};
    timeout.tv_nsec = (long)((time_us - (double)timeout.tv_sec * 1e6) * 1e3);
    atomic_fetch_add(&gate->n_sleeping, 1);
    if (atomic_load(&gate->value) == old) futex(&gate->value, FUTEX_WAIT_PRIVATE, old, &timeout);
    atomic_fetch_sub(&gate->n_sleeping, 1);
}

void atsi_gate_open(struct atsi_gate *gate) {
    atomic_fetch_add(&gate->value, 1);
    if (atomic_load(&gate->n_sleeping) != 0) futex(&gate->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
}
