// instance_fields.h: what both kinds of instance files have in common (docs/instances.md): limits, sizes, times, the list of units.
#ifndef ATSI_PLANNER_SOLVE_INSTANCE_FIELDS_H
#define ATSI_PLANNER_SOLVE_INSTANCE_FIELDS_H

#include "formats/base/json.h"

#define ATSI_INSTANCE_UNITS_MAX 4096
#define ATSI_INSTANCE_TIME_MAX  1e12       // us
#define ATSI_INSTANCE_FILE_MAX  (64 << 20) // bytes

// All strict: ATSI_BAD_INPUT names the field.
enum atsi_status atsi_instance_size(const cJSON *object, const char *field, uint64_t min, uint64_t *out,
                                    struct atsi_error *err);
enum atsi_status atsi_instance_time(const cJSON *object, const char *field, double *out, struct atsi_error *err);

// What every unit has: a name (which is only checked to be there), its size and its times.
struct atsi_instance_unit {
    uint64_t size_bytes;
    double t_cpu_us, t_gpu_us, switch_us;
};
enum atsi_status atsi_instance_unit(const cJSON *object, struct atsi_instance_unit *out, struct atsi_error *err);

// Reads "units" of the tree: 1 to ATSI_INSTANCE_UNITS_MAX, of unit_bytes each, into *units (calloc'ed, the caller's also after a
// failure); `read` reads unit i. Messages name the unit.
typedef enum atsi_status atsi_instance_read_unit(const cJSON *object, size_t i, void *unit, struct atsi_error *err);
enum atsi_status atsi_instance_units(const cJSON *tree, size_t unit_bytes, atsi_instance_read_unit *read, void **units,
                                     size_t *n_units, struct atsi_error *err);

// Parses the file and hands its tree to `read` with `out`; messages start with the path.
typedef enum atsi_status atsi_instance_read_tree(const cJSON *tree, void *out, struct atsi_error *err);
enum atsi_status atsi_instance_read_file(const char *path, atsi_instance_read_tree *read, void *out,
                                         struct atsi_error *err);

#endif
