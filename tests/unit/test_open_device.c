// Whether a plan was made for this card.
#include <string.h>

#include "runtime/open_device.h"
#include "tests/support/check.h"

static void names_are_compared_by_their_model_numbers(void **state) {
    (void)state;
    assert_true(atsi_is_planned_device("RTX 3060 Laptop 6 GB, Core i7-11800H", "NVIDIA GeForce RTX 3060 Laptop GPU"));
    assert_true(atsi_is_planned_device("NVIDIA H200, Intel(R) Xeon(R) Processor, 16 threads", "NVIDIA H200"));
    assert_false(atsi_is_planned_device("RTX 3060 Laptop 6 GB, Core i7-11800H", "NVIDIA GeForce RTX 4090"));
    assert_false(atsi_is_planned_device("RTX 4090 24 GB, Core i7-11700", "NVIDIA H200"));
    assert_true(atsi_is_planned_device("", "NVIDIA H200"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_compared_by_their_model_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
