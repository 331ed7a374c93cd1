#include "kernels/cpu/topology.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXT_CAP = 4096
};

// Reads a small text file. An absent or empty file gives false.
static bool read_text(const char *root, const char *path, char text[TEXT_CAP]) {
    char full[TEXT_CAP];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return false;
    FILE *file = fopen(full, "r");
    if (file == NULL) return false;
    size_t n = fread(text, 1, TEXT_CAP - 1, file);
    fclose(file);
    text[n] = 0;
    return n > 0;
}

static bool read_number(const char *root, const char *path, long *out) {
    char text[TEXT_CAP], *end;
    if (!read_text(root, path, text)) return false;
    *out = strtol(text, &end, 10);
    return end != text;
}

// First CPU of a list such as "0-3,8"; -1 when there is none.
static int list_first(const char *list) {
    char *end;
    long first = strtol(list, &end, 10);
    return end == list || first < 0 || first > INT_MAX ? -1 : (int)first;
}

static bool list_contains(const char *list, int cpu) {
    for (const char *at = list; *at != 0;) {
        char *end;
        long low = strtol(at, &end, 10), high = low;
        if (end == at) return false;
        if (*end == '-') {
            at = end + 1;
            high = strtol(at, &end, 10);
        }
        if (cpu >= low && cpu <= high) return true;
        at = *end == ',' ? end + 1 : "";
    }
    return false;
}

// A figure that is larger on faster cores, from whichever of the kernel's files exists.
static long core_speed(const char *root, int cpu) {
    char path[128];
    long speed;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", cpu);
    if (read_number(root, path, &speed)) return speed;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
    return read_number(root, path, &speed) ? speed : 0;
}

struct core {
    int cpu;
    bool sibling; // another usable CPU of the same core stands before it
    bool fast;
    long speed;
};

static bool is_sibling(const char *root, int cpu, const struct core *cores, int n_before) {
    char path[128], list[TEXT_CAP];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_text(root, path, list) || list_first(list) < 0) return false;
    for (int i = 0; i < n_before; i++)
        if (list_contains(list, cores[i].cpu)) return true;
    return false;
}

// Hybrid x86 processors name their fast cores. Elsewhere a core is fast within a fifth of the fastest: turbo bins of equal
// cores differ by less, kinds of cores by more.
static void mark_fast(const char *root, struct core *cores, int n) {
    char named[TEXT_CAP];
    bool has_names = read_text(root, "/sys/devices/cpu_core/cpus", named);
    bool any = false;
    long best = 0;
    for (int i = 0; i < n; i++) {
        cores[i].fast = has_names && list_contains(named, cores[i].cpu);
        any |= cores[i].fast;
        if (cores[i].speed > best) best = cores[i].speed;
    }
    for (int i = 0; i < n && !any; i++) cores[i].fast = cores[i].speed >= best - best / 5;
}

// Smallest quota of the group at `path` and its parents, each read by `read_group`; 0 = none.
static int walk_groups(const char *root, const char *mount, char *path, int (*read_group)(const char *, const char *)) {
    int smallest = 0;
    for (;;) {
        char group[TEXT_CAP];
        snprintf(group, sizeof group, "%s%s", mount, strcmp(path, "/") == 0 ? "" : path);
        int quota = read_group(root, group);
        if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
        char *slash = strrchr(path, '/');
        if (slash == NULL || path[0] == 0) return smallest;
        *slash = 0;
    }
}

static int whole_cpus(double quota_us, double period_us) {
    if (quota_us <= 0 || period_us <= 0) return 0;
    double cpus = quota_us / period_us;
    return cpus >= ATSI_CPUS_CAP ? ATSI_CPUS_CAP : (int)cpus + (cpus > (int)cpus);
}

static int group_quota_v2(const char *root, const char *group) {
    char path[TEXT_CAP + 16], text[TEXT_CAP];
    double quota_us, period_us;
    snprintf(path, sizeof path, "%s/cpu.max", group);
    if (!read_text(root, path, text) || sscanf(text, "%lf %lf", &quota_us, &period_us) != 2) return 0; // "max 100000"
    return whole_cpus(quota_us, period_us);
}

static int group_quota_v1(const char *root, const char *group) {
    char path[TEXT_CAP + 32];
    long quota_us, period_us;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", group);
    if (!read_number(root, path, &quota_us)) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", group);
    if (!read_number(root, path, &period_us)) return 0;
    return whole_cpus((double)quota_us, (double)period_us);
}

static bool has_controller(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += n)
        if ((at == list || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}

// Lines of /proc/self/cgroup are "0::/path" (v2) and "4:cpu,cpuacct:/path" (v1).
static int cgroup_quota(const char *root) {
    char text[TEXT_CAP], *line_end = NULL;
    int smallest = 0;
    if (!read_text(root, "/proc/self/cgroup", text)) return 0;
    for (char *line = strtok_r(text, "\n", &line_end); line != NULL; line = strtok_r(NULL, "\n", &line_end)) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL) continue;
        controllers++;
        *path++ = 0;
        int quota = 0;
        if (controllers[0] == 0)
            quota = walk_groups(root, "/sys/fs/cgroup", path, group_quota_v2);
        else if (has_controller(controllers, "cpu"))
            quota = walk_groups(root, "/sys/fs/cgroup/cpu", path, group_quota_v1);
        if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    }
    return smallest;
}

static int rank(const struct core *core) { return core->sibling ? 2 : core->fast ? 0 : 1; }

void atsi_topology_read_at(struct atsi_topology *out, const char *root, const int *usable, int n_usable) {
    struct core *cores = calloc((size_t)n_usable, sizeof *cores);
    out->n_cpus = n_usable;
    out->n_fast_cores = n_usable;
    out->quota_cpus = cgroup_quota(root);
    memcpy(out->cpus, usable, (size_t)n_usable * sizeof *usable);
    if (cores == NULL) return; // treated as uniform
    for (int i = 0; i < n_usable; i++) {
        cores[i].cpu = usable[i];
        cores[i].sibling = is_sibling(root, usable[i], cores, i);
        cores[i].speed = core_speed(root, usable[i]);
    }
    mark_fast(root, cores, n_usable);
    int n = 0;
    for (int wanted = 0; wanted < 3; wanted++) {
        for (int i = 0; i < n_usable; i++)
            if (rank(&cores[i]) == wanted) out->cpus[n++] = cores[i].cpu;
        if (wanted == 0) out->n_fast_cores = n;
    }
    free(cores);
}

void atsi_topology_read(struct atsi_topology *out) {
    int usable[ATSI_CPUS_CAP], n = 0;
    cpu_set_t *set = CPU_ALLOC(ATSI_CPUS_CAP);
    size_t set_bytes = CPU_ALLOC_SIZE(ATSI_CPUS_CAP);
    if (set != NULL && sched_getaffinity(0, set_bytes, set) == 0)
        for (int cpu = 0; cpu < ATSI_CPUS_CAP; cpu++)
            if (CPU_ISSET_S(cpu, set_bytes, set)) usable[n++] = cpu;
    if (set != NULL) CPU_FREE(set);
    if (n == 0) usable[n++] = 0;
    atsi_topology_read_at(out, "", usable, n);
}
