// What a user is told when a plan meets another card or a fuller one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/open_device.h"

static void names_are_compared_by_their_model_numbers(void **state) {
    (void)state;
    assert_true(atsi_is_planned_device("RTX 3060 Laptop 6 GB, Core i7-11800H", "NVIDIA GeForce RTX 3060 Laptop GPU"));
    assert_true(atsi_is_planned_device("NVIDIA H200, Intel(R) Xeon(R) Processor, 16 threads", "NVIDIA H200"));
    assert_false(atsi_is_planned_device("RTX 3060 Laptop 6 GB, Core i7-11800H", "NVIDIA GeForce RTX 4090"));
    assert_false(atsi_is_planned_device("RTX 4090 24 GB, Core i7-11700", "NVIDIA H200"));
    assert_true(atsi_is_planned_device("", "NVIDIA H200"));
}

static void a_mismatch_is_one_line_with_the_way_out(void **state) {
    (void)state;
    struct atsi_plan plan = {.limits = {.vram_bytes = 6ull << 30}, .device = "RTX 3060 Laptop 6 GB, Core i7-11800H"};
    struct atsi_device_info info = {.name = "NVIDIA GeForce RTX 3060 Laptop GPU", .free_bytes = 6ull << 30};
    char text[512];
    atsi_describe_mismatch(&plan, &info, text, sizeof text);
    assert_string_equal(text, "");
    info.free_bytes = 5ull << 30;
    info.used_by_process_bytes = 512 << 20;
    atsi_describe_mismatch(&plan, &info, text, sizeof text);
    assert_non_null(strstr(text, "5632 MiB of the card are free"));
    assert_non_null(strstr(text, "atsi-plan MODEL.gguf --vram 5632M"));
    strcpy(info.name, "NVIDIA GeForce RTX 4090");
    atsi_describe_mismatch(&plan, &info, text, sizeof text);
    assert_non_null(strstr(text, "made for RTX 3060 Laptop 6 GB"));
    assert_null(strchr(text, '\n'));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_compared_by_their_model_numbers),
        cmocka_unit_test(a_mismatch_is_one_line_with_the_way_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
