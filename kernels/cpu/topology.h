// topology.h: which CPUs this process may use, and in which order threads should take them.
#ifndef ATSI_KERNELS_CPU_TOPOLOGY_H
#define ATSI_KERNELS_CPU_TOPOLOGY_H

#include <stdint.h>

enum {
    ATSI_CPUS_CAP = 4096
};

struct atsi_topology {
    int n_cpus;              // usable logical CPUs: the affinity mask; >= 1
    int n_fast_cores;        // of these, physical cores of the fastest kind; 1..n_cpus
    int quota_cpus;          // whole CPUs that the control group's quota pays for (rounded up), 0 without a quota
    int cpus[ATSI_CPUS_CAP]; // ids: one of each fast core first, then one of each slower core, then their siblings
};

// Reads sysfs, procfs and the calling thread's affinity mask. Never fails: what cannot be read counts as uniform.
void atsi_topology_read(struct atsi_topology *out);
// The same with the files below `root` (tests) and a given list of usable CPUs, ascending.
void atsi_topology_read_at(struct atsi_topology *out, const char *root, const int *usable, int n_usable);

#endif
