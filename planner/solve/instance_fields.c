#include "planner/solve/instance_fields.h"

#include <stdlib.h>

enum atsi_status atsi_instance_size(const cJSON *object, const char *field, uint64_t min, uint64_t *out,
                                    struct atsi_error *err) {
    int64_t value = 0;
    ATSI_TRY(atsi_json_get_i64(object, field, (int64_t)min, ATSI_JSON_INTEGER_END - 1, &value, err));
    *out = (uint64_t)value;
    return ATSI_OK;
}

enum atsi_status atsi_instance_time(const cJSON *object, const char *field, double *out, struct atsi_error *err) {
    return atsi_json_get_double(object, field, 0, ATSI_INSTANCE_TIME_MAX, out, err);
}

enum atsi_status atsi_instance_unit(const cJSON *object, struct atsi_instance_unit *out, struct atsi_error *err) {
    const char *name;
    ATSI_TRY(atsi_json_get_string(object, "name", &name, err));
    ATSI_TRY(atsi_instance_size(object, "size_bytes", 0, &out->size_bytes, err));
    ATSI_TRY(atsi_instance_time(object, "t_cpu_us", &out->t_cpu_us, err));
    ATSI_TRY(atsi_instance_time(object, "t_gpu_us", &out->t_gpu_us, err));
    return atsi_instance_time(object, "switch_us", &out->switch_us, err);
}

enum atsi_status atsi_instance_units(const cJSON *tree, size_t unit_bytes, atsi_instance_read_unit *read, void **units,
                                     size_t *n_units, struct atsi_error *err) {
    const cJSON *array = NULL, *item;
    size_t i = 0;
    ATSI_TRY(atsi_json_get_array(tree, "units", &array, err));
    int n = cJSON_GetArraySize(array);
    if (n < 1 || n > ATSI_INSTANCE_UNITS_MAX)
        return atsi_fail(err, ATSI_BAD_INPUT, "%d units; there must be 1 to %d", n, ATSI_INSTANCE_UNITS_MAX);
    *units = calloc((size_t)n, unit_bytes);
    if (!*units) return atsi_out_of_memory(err);
    *n_units = (size_t)n;
    cJSON_ArrayForEach(item, array) {
        if (read(item, i, (char *)*units + i * unit_bytes, err) != ATSI_OK)
            return atsi_fail_prefix(err, "units[%zu]", i);
        i++;
    }
    return ATSI_OK;
}

enum atsi_status atsi_instance_read_file(const char *path, atsi_instance_read_tree *read, void *out,
                                         struct atsi_error *err) {
    cJSON *tree = NULL;
    ATSI_TRY(atsi_json_parse_file(path, ATSI_INSTANCE_FILE_MAX, &tree, err));
    enum atsi_status status = read(tree, out, err);
    if (status != ATSI_OK) atsi_fail_prefix(err, "%s", path);
    cJSON_Delete(tree);
    return status;
}
