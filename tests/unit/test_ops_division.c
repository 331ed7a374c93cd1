// Experts' slots divided between host and device by how many of a token's experts are resident, on the CPU with every instruction set and
// on the simulated device.
#include "kernels/sim/sim_device.h"
#include "tests/support/check.h"
#include "tests/support/division_case.h"

static struct atsi_device *open_device(void) {
    struct atsi_sim_params params = {.memory_bytes = 64 << 20};
    struct atsi_device *d = NULL;
    struct atsi_error err = {.status = ATSI_OK};
    check_ok(atsi_sim_open(&params, &d, &err), err);
    return d;
}

static void parts_make_the_whole(void **state) {
    (void)state;
    struct atsi_device *d = open_device();
    static const enum atsi_dtype TYPES[] = {ATSI_F32, ATSI_Q8_0};
    static const uint32_t N_USED[] = {1, 2, 4, 8, 33, 64};
    for (int k = 0; k <= 4; k++)
        for (size_t i = 0; i < sizeof N_USED / sizeof *N_USED; i++) {
            struct division_case x = {.dtype = TYPES[(i + (size_t)k) % 2],
                                      .n_tokens = 1 + 4 * (uint32_t)(i % 3),
                                      .n_experts = N_USED[i] + 5 * (uint32_t)i + 1,
                                      .n_used = N_USED[i],
                                      .width = 32,
                                      .resident = 0.25f * (float)k,
                                      .least = k % 2 == 1,
                                      .part = i % 2 == 1};
            division_case_check(&x, d);
        }
    d->ops->close(d);
}

static void copies_take_the_other_sides_slots(void **state) {
    (void)state;
    struct atsi_device *d = open_device();
    division_case_check_copies(d);
    d->ops->close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(copies_take_the_other_sides_slots),
    };
    return cmocka_run_group_tests_name("divided slots", tests, NULL, NULL);
}
