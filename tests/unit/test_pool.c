// The thread pool under load and oversubscription, and the choice of CPUs on invented machines.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"
#include "kernels/cpu/topology.h"
#include "tests/support/check.h"
#include "tests/support/test_temp.h"

enum {
    THREADS_MAX = 64
};

// ---- dispatch and barriers --------------------------------------------------------------------------------------------

struct rounds {
    struct atsi_pool *pool;
    int n_rounds;
    int written[THREADS_MAX]; // plain memory: the sanitizer proves that barriers order it
    _Atomic int n_wrong;
};

// In every round each thread checks what its neighbour wrote in the round before.
static void check_neighbour(void *context, int i_thread, int n_threads) {
    struct rounds *rounds = context;
    for (int round = 1; round <= rounds->n_rounds; round++) {
        rounds->written[i_thread] = round;
        atsi_pool_barrier(rounds->pool);
        if (rounds->written[(i_thread + 1) % n_threads] != round) rounds->n_wrong++;
        atsi_pool_barrier(rounds->pool);
    }
}

static void run_rounds(struct atsi_pool *pool, int n_dispatches, int n_rounds) {
    struct rounds rounds = {.pool = pool, .n_rounds = n_rounds};
    for (int i = 0; i < n_dispatches; i++) {
        atsi_pool_run(pool, check_neighbour, &rounds);
        for (int t = 0; t < atsi_pool_n_threads(pool); t++) assert_int_equal(rounds.written[t], n_rounds);
    }
    assert_int_equal(rounds.n_wrong, 0);
}

static void barriers_order_memory(void **state) {
    (void)state;
    struct atsi_error err;
    struct atsi_pool *pool;
    for (int n_threads = 1; n_threads <= 8; n_threads *= 2) {
        check_ok(atsi_pool_create_unbound(n_threads, &pool, &err), err);
        assert_int_equal(atsi_pool_n_threads(pool), n_threads);
        run_rounds(pool, 50, 20);
        atsi_pool_free(pool);
    }
    check_ok(atsi_pool_create(0, &pool, &err), err);
    run_rounds(pool, 200, 50);
    usleep(2000); // the threads are asleep by now
    run_rounds(pool, 1, 1);
    atsi_pool_free(pool);
    atsi_pool_free(NULL);
}

struct shares {
    struct atsi_pool *pool;
    int n_items;
    _Atomic int *taken;
};

static void take_shares(void *context, int i_thread, int n_threads) {
    (void)i_thread, (void)n_threads;
    struct shares *shares = context;
    for (int phase = 0; phase < 3; phase++) {
        for (int item; (item = atsi_pool_next(shares->pool)) < shares->n_items;) shares->taken[item]++;
        atsi_pool_barrier(shares->pool);
    }
}

static void items_are_handed_out_once(void **state) {
    (void)state;
    struct atsi_error err;
    struct shares shares = {.n_items = 1000};
    shares.taken = calloc(1000, sizeof *shares.taken);
    check_ok(atsi_pool_create_unbound(5, &shares.pool, &err), err);
    for (int i = 0; i < 10; i++) atsi_pool_run(shares.pool, take_shares, &shares);
    for (int i = 0; i < 1000; i++) assert_int_equal(shares.taken[i], 30);
    atsi_pool_free(shares.pool);
    free(shares.taken);
}

// ---- work in phases ---------------------------------------------------------------------------------------------------

enum {
    PHASES = 40,
    ITEMS_MAX = 300
};

struct phases {
    uint32_t cells[PHASES + 1][ITEMS_MAX]; // plain memory again
    uint32_t n_begun;
    int n_threads;
    _Atomic int n_wrong;
};

static uint32_t items_of(uint32_t phase) {
    static const uint32_t COUNTS[] = {3, 1, 1, 0, 17, ITEMS_MAX, 2, 1};
    return COUNTS[phase % 8];
}

static uint32_t begin_phase(void *context, uint32_t phase) {
    struct phases *p = context;
    if (p->n_begun++ != phase) p->n_wrong++;
    memcpy(p->cells[phase + 1], p->cells[phase], sizeof p->cells[phase]); // all that earlier phases wrote is seen
    return items_of(phase);
}

static void do_item(void *context, uint32_t phase, uint32_t item, int i_thread) {
    struct phases *p = context;
    if (item >= items_of(phase) || i_thread < 0 || i_thread >= p->n_threads) p->n_wrong++;
    p->cells[phase + 1][item] += p->cells[phase][(item + 1) % items_of(phase)] + 1;
}

static void run_phases(struct atsi_pool *pool, int n_dispatches) {
    static const struct atsi_pool_work WORK = {.n_phases = PHASES, .begin = begin_phase, .item = do_item};
    struct phases found = {.n_threads = atsi_pool_n_threads(pool)}, wanted = {.n_threads = 1};
    for (uint32_t phase = 0; phase < PHASES; phase++)
        for (uint32_t item = 0, n = begin_phase(&wanted, phase); item < n; item++) do_item(&wanted, phase, item, 0);
    for (int i = 0; i < n_dispatches; i++) {
        found.n_begun = 0;
        atsi_pool_share(pool, &WORK, &found);
        assert_int_equal(found.n_begun, PHASES);
        assert_memory_equal(found.cells, wanted.cells, sizeof wanted.cells);
        if (i % 5 == 0) run_rounds(pool, 1, 2); // jobs in between
        if (i % 16 == 0) usleep(5000);          // the threads go to sleep
    }
    assert_int_equal(found.n_wrong, 0);
}

static void phases_follow_each_other(void **state) {
    (void)state;
    struct atsi_error err;
    struct atsi_pool *pool;
    for (int n_threads = 1; n_threads <= 16; n_threads *= 2) {
        check_ok(atsi_pool_create_unbound(n_threads, &pool, &err), err);
        run_phases(pool, 40);
        atsi_pool_free(pool);
    }
    check_ok(atsi_pool_create(0, &pool, &err), err);
    run_phases(pool, 300);
    atsi_pool_free(pool);
}

// ---- a crowded machine ------------------------------------------------------------------------------------------------

// As above, but threads fall asleep in the middle of items that others may repeat.
struct repeated {
    struct phases phases;
    struct atsi_repeats *repeats;
    _Atomic uint32_t n_computed, n_kept, n_alone;
};

struct repeated_job {
    struct repeated *all;
    uint32_t phase, n_items, *out;
    uint32_t in[ITEMS_MAX];
};

static void compute_repeated(const void *memory, uint32_t item, void *result) {
    const struct repeated_job *job = memory;
    uint32_t in = job->in[(item + 1) % job->n_items], n = atomic_fetch_add(&job->all->n_computed, 1);
    if (n * 2654435761u >> 28 == 0) usleep(3000);
    *(uint32_t *)result = in + 1;
}

static void keep_repeated(const void *memory, uint32_t item, const void *result, int i_thread) {
    (void)i_thread;
    const struct repeated_job *job = memory;
    job->out[item] += *(const uint32_t *)result;
    job->all->n_kept++;
}

static uint32_t begin_repeated(void *context, uint32_t phase) {
    struct repeated *r = context;
    return begin_phase(&r->phases, phase);
}

static void do_repeated(void *context, uint32_t phase, uint32_t item, int i_thread) {
    struct repeated *r = context;
    do_item(&r->phases, phase, item, i_thread);
}

static enum atsi_pool_way way_of_repeated(void *context, uint32_t phase, void *memory) {
    struct repeated *r = context;
    struct repeated_job *job = memory;
    if (phase % 3 == 1) {
        r->n_alone++;
        return ATSI_POOL_ALONE;
    }
    if (phase % 7 == 2 || job == NULL) return ATSI_POOL_SHARES;
    *job =
        (struct repeated_job){.all = r, .phase = phase, .n_items = items_of(phase), .out = r->phases.cells[phase + 1]};
    memcpy(job->in, r->phases.cells[phase], sizeof job->in);
    return ATSI_POOL_REPEATS;
}

static void late_items_are_repeated(void **state) {
    (void)state;
    static const struct atsi_repeat_kind KIND = {sizeof(struct repeated_job), sizeof(uint32_t), compute_repeated,
                                                 keep_repeated};
    static struct repeated found;
    static struct phases wanted;
    struct atsi_error err;
    uint32_t n_again = 0;
    uint64_t n_sooner = 0;
    for (uint32_t phase = 0; phase < PHASES; phase++)
        for (uint32_t item = 0, n = begin_phase(&wanted, phase); item < n; item++) {
            wanted.n_threads = 1;
            do_item(&wanted, phase, item, 0);
        }
    static const int N_THREADS[] = {2, 4, 8, THREADS_MAX}; // the last are more than there are slots
    for (int n = 0; n < 4; n++) {
        int n_threads = N_THREADS[n];
        struct atsi_pool *pool;
        struct atsi_pool_work work = {.n_phases = PHASES,
                                      .begin = begin_repeated,
                                      .item = do_repeated,
                                      .repeats = atsi_repeats_create(&KIND, n_threads),
                                      .crowded_way = way_of_repeated};
        assert_non_null(work.repeats);
        check_ok(atsi_pool_create_unbound(n_threads, &pool, &err), err);
        found.phases.n_threads = n_threads;
        found.phases.n_wrong = 0;
        for (int i = 0; i < 12; i++) {
            found.phases.n_begun = found.n_alone = 0;
            found.n_computed = found.n_kept = 0;
            atsi_pool_assume_crowded(pool, i == 5 ? 0 : 60e6);
            atsi_pool_share(pool, &work, &found);
            assert_memory_equal(found.phases.cells, wanted.cells, sizeof wanted.cells);
            if (i != 5) assert_int_not_equal(found.n_alone, 0);
            if (i != 5) assert_int_not_equal(found.n_kept, 0);
            if (i % 4 == 3) run_rounds(pool, 1, 2); // late threads come to a job too
            n_again += found.n_computed > found.n_kept;
        }
        assert_int_equal(found.phases.n_wrong, 0);
        n_sooner += atsi_pool_crowding(pool).n_repeated;
        atsi_pool_free(pool);
        atsi_repeats_free(work.repeats);
    }
    assert_int_not_equal(n_again, 0);
    assert_int_not_equal(n_sooner, 0);
}

// ---- whose items ------------------------------------------------------------------------------------------------------

struct own {
    int n_threads;
    _Atomic int n_inside, n_strange;
};

static uint32_t begin_own(void *context, uint32_t phase) {
    struct own *own = context;
    (void)phase;
    own->n_inside = 0;
    return 3 * (uint32_t)own->n_threads;
}

// Nobody leaves the first item before all threads have one, so none can help others with theirs: each is the first of a share of three.
static void do_own(void *context, uint32_t phase, uint32_t item, int i_thread) {
    struct own *own = context;
    (void)phase, (void)i_thread;
    if (own->n_inside >= own->n_threads) return;
    if (item % 3 != 0) own->n_strange++;
    own->n_inside++;
    while (own->n_inside < own->n_threads) sched_yield();
}

static void threads_begin_with_their_own_share(void **state) {
    (void)state;
    static const struct atsi_pool_work WORK = {.n_phases = 5, .begin = begin_own, .item = do_own};
    struct own own = {.n_threads = 5};
    struct atsi_error err;
    struct atsi_pool *pool;
    check_ok(atsi_pool_create_unbound(own.n_threads, &pool, &err), err);
    atsi_pool_share(pool, &WORK, &own);
    assert_int_equal(own.n_strange, 0);
    atsi_pool_free(pool);
}

// A worker that is stuck in nobody's item: the dispatch ends without it. It hangs in an item of the first dispatch's last phase
// until the caller has gone through all other items.
struct straggler {
    _Atomic int n_left; // items that others must do before the straggler's ends
    _Atomic int n_done;
};

static uint32_t begin_with_straggler(void *context, uint32_t phase) {
    (void)context, (void)phase;
    return 64;
}

static void straggle(void *context, uint32_t phase, uint32_t item, int i_thread) {
    struct straggler *s = context;
    (void)phase, (void)item;
    if (i_thread != 0)
        while (s->n_left > 0) sched_yield();
    s->n_left--;
    s->n_done++;
}

static void others_do_what_a_straggler_leaves(void **state) {
    (void)state;
    static const struct atsi_pool_work WORK = {.n_phases = 1, .begin = begin_with_straggler, .item = straggle};
    struct atsi_error err;
    struct atsi_pool *pool;
    check_ok(atsi_pool_create_unbound(2, &pool, &err), err);
    for (int i = 0; i < 20; i++) {
        struct straggler s = {.n_left = 63};
        atsi_pool_share(pool, &WORK, &s);
        assert_int_equal(s.n_done, 64);
    }
    atsi_pool_free(pool);
}

// ---- more threads than cores ------------------------------------------------------------------------------------------

static void *drive_own_pool(void *argument) {
    struct atsi_pool *pool;
    (void)argument;
    if (atsi_pool_create(1000, &pool, NULL) != ATSI_OK) return NULL;
    run_rounds(pool, 20, 100);
    run_phases(pool, 50);
    atsi_pool_free(pool);
    return pool;
}

// Three pools of spinning threads bound to the same cores: they must get by with yielding and sleeping.
static void pools_share_the_cores(void **state) {
    (void)state;
    pthread_t drivers[3];
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&drivers[i], NULL, drive_own_pool, NULL), 0);
    for (int i = 0; i < 3; i++) {
        void *done;
        pthread_join(drivers[i], &done);
        assert_non_null(done);
    }
}

static void many_threads_on_one_core(void **state) {
    (void)state;
    cpu_set_t before, one;
    struct atsi_error err;
    struct atsi_pool *pool;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    check_ok(atsi_pool_create_unbound(16, &pool, &err), err); // inherits the one core
    run_rounds(pool, 5, 50);
    run_phases(pool, 20);
    atsi_pool_free(pool);
    check_ok(atsi_pool_create(0, &pool, &err), err);
    assert_int_equal(atsi_pool_n_threads(pool), 1);
    atsi_pool_free(pool);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void *wait_for_byte(void *pipe_end) {
    char byte;
    return read(*(int *)pipe_end, &byte, 1) == 1 ? pipe_end : NULL;
}

// A thread of somebody else leaves the caller's core alone where there is another.
static void others_keep_off_the_callers_core(void **state) {
    (void)state;
    int ends[2];
    void *done;
    pthread_t thread;
    cpu_set_t before, after;
    struct atsi_topology topology;
    struct atsi_error err;
    struct atsi_pool *pool;
    atsi_topology_read(&topology);
    check_ok(atsi_pool_create(0, &pool, &err), err);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_byte, &ends[0]), 0);
    assert_int_equal(pthread_getaffinity_np(thread, sizeof before, &before), 0);
    atsi_pool_keep_off(pool, thread);
    assert_int_equal(pthread_getaffinity_np(thread, sizeof after, &after), 0);
    if (atsi_pool_n_threads(pool) > 1) CPU_CLR((size_t)topology.cpus[0], &before);
    assert_true(CPU_EQUAL(&before, &after));
    assert_int_equal(write(ends[1], "x", 1), 1);
    pthread_join(thread, &done);
    assert_non_null(done);
    close(ends[0]);
    close(ends[1]);
    atsi_pool_free(pool);
}

static void counts_are_clamped(void **state) {
    (void)state;
    struct atsi_error err;
    struct atsi_pool *pool;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_in_range(atsi_pool_default_threads(), 1, CPU_COUNT(&set));
    check_ok(atsi_pool_create(1000000, &pool, &err), err);
    assert_in_range(atsi_pool_n_threads(pool), 1, CPU_COUNT(&set));
    atsi_pool_free(pool);
    check_refused(atsi_pool_create(-1, &pool, &err), err, "-1 threads");
    check_refused(atsi_pool_create_unbound(0, &pool, &err), err, "0 threads");
}

// ---- topology ---------------------------------------------------------------------------------------------------------

static char root[TEMP_ROOT_CAP];

static void put(const char *path, const char *text) {
    char full[256];
    int n = snprintf(full, sizeof full, "%s", root);
    for (const char *at = path; *at != 0; at++) { // makes the folders on the way
        if (*at == '/' && at != path) {
            full[n] = 0;
            mkdir(full, 0755);
        }
        full[n++] = *at;
    }
    full[n] = 0;
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put_cpu(int cpu, const char *siblings, const char *speed_file, long speed) {
    char path[128], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(path, siblings);
    if (speed_file == NULL) return;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, speed_file);
    snprintf(text, sizeof text, "%ld\n", speed);
    put(path, text);
}

static void check_order(const struct atsi_topology *t, int n_fast, const int *order, int n) {
    assert_int_equal(t->n_cpus, n);
    assert_int_equal(t->n_fast_cores, n_fast);
    for (int i = 0; i < n; i++) assert_int_equal(t->cpus[i], order[i]);
}

// Two fast cores with two threads each (0-1, 2-3) and two slow cores (4, 5).
static void hybrid_cores(void **state) {
    (void)state;
    static const int ALL[] = {0, 1, 2, 3, 4, 5}, PART[] = {1, 2, 3, 5};
    struct atsi_topology t;
    temp_folder(root);
    for (int cpu = 0; cpu < 4; cpu++)
        put_cpu(cpu, cpu < 2 ? "0-1\n" : "2-3\n", "cpufreq/cpuinfo_max_freq", 5200000 - 100000 * (cpu / 2));
    put_cpu(4, "4\n", "cpufreq/cpuinfo_max_freq", 3900000);
    put_cpu(5, "5\n", "cpufreq/cpuinfo_max_freq", 3900000);
    atsi_topology_read_at(&t, root, ALL, 6);
    check_order(&t, 2, (const int[]){0, 2, 4, 5, 1, 3}, 6);
    atsi_topology_read_at(&t, root, PART, 4); // a mask that starts at a second thread
    check_order(&t, 2, (const int[]){1, 2, 5, 3}, 4);
    put("/sys/devices/cpu_core/cpus", "4-5\n"); // names count for more than clocks
    atsi_topology_read_at(&t, root, ALL, 6);
    check_order(&t, 2, (const int[]){4, 5, 0, 2, 1, 3}, 6);
    temp_remove(root);
}

static void capacities_and_bare_machines(void **state) {
    (void)state;
    static const int ALL[] = {0, 1, 2, 3};
    struct atsi_topology t;
    temp_folder(root);
    atsi_topology_read_at(&t, root, ALL, 4); // nothing to read
    check_order(&t, 4, ALL, 4);
    assert_int_equal(t.quota_cpus, 0);
    for (int cpu = 0; cpu < 4; cpu++) put_cpu(cpu, "", "cpu_capacity", cpu < 2 ? 446 : 1024);
    atsi_topology_read_at(&t, root, ALL, 4);
    check_order(&t, 2, (const int[]){2, 3, 0, 1}, 4);
    temp_remove(root);
}

static void quotas(void **state) {
    (void)state;
    static const int ALL[] = {0, 1, 2, 3};
    struct atsi_topology t;
    temp_folder(root);
    put("/proc/self/cgroup", "0::/user/box\n");
    put("/sys/fs/cgroup/user/box/cpu.max", "max 100000\n");
    atsi_topology_read_at(&t, root, ALL, 4);
    assert_int_equal(t.quota_cpus, 0);
    put("/sys/fs/cgroup/user/cpu.max", "250000 100000\n"); // a parent's counts too
    atsi_topology_read_at(&t, root, ALL, 4);
    assert_int_equal(t.quota_cpus, 3);
    put("/sys/fs/cgroup/user/box/cpu.max", "50000 100000\n");
    atsi_topology_read_at(&t, root, ALL, 4);
    assert_int_equal(t.quota_cpus, 1);
    put("/proc/self/cgroup", "7:memory:/m\n4:cpu,cpuacct:/box\n");
    put("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    atsi_topology_read_at(&t, root, ALL, 4);
    assert_int_equal(t.quota_cpus, 0);
    put("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "200000\n");
    atsi_topology_read_at(&t, root, ALL, 4);
    assert_int_equal(t.quota_cpus, 2);
    put("/proc/self/cgroup", "nonsense\n::\n:\n");
    atsi_topology_read_at(&t, root, ALL, 4);
    assert_int_equal(t.quota_cpus, 0);
    temp_remove(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_order_memory),
        cmocka_unit_test(items_are_handed_out_once),
        cmocka_unit_test(phases_follow_each_other),
        cmocka_unit_test(late_items_are_repeated),
        cmocka_unit_test(threads_begin_with_their_own_share),
        cmocka_unit_test(others_do_what_a_straggler_leaves),
        cmocka_unit_test(pools_share_the_cores),
        cmocka_unit_test(many_threads_on_one_core),
        cmocka_unit_test(others_keep_off_the_callers_core),
        cmocka_unit_test(counts_are_clamped),
        cmocka_unit_test(hybrid_cores),
        cmocka_unit_test(capacities_and_bare_machines),
        cmocka_unit_test(quotas),
    };
    return cmocka_run_group_tests_name("thread pool", tests, NULL, NULL);
}
