// check.h: cmocka with its includes, and checks of the project's error convention.
#ifndef ATSI_TESTS_SUPPORT_CHECK_H
#define ATSI_TESTS_SUPPORT_CHECK_H

// cmocka.h wants these before it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "formats/base/error.h"

// The call succeeded; else the test fails with the message.
#define check_ok(expression, err)                                                 \
    do {                                                                          \
        if ((expression) != ATSI_OK) fail_msg("%s: %s", #expression, (err).text); \
    } while (0)

// The message is one printable line and has every word given.
#define check_message(err, ...)                                                                        \
    do {                                                                                               \
        const char *const words_[] = {__VA_ARGS__};                                                    \
        for (size_t w_ = 0; w_ < sizeof words_ / sizeof *words_; w_++)                                 \
            if (!strstr((err).text, words_[w_])) fail_msg("no \"%s\" in: %s", words_[w_], (err).text); \
        for (const char *c_ = (err).text; *c_; c_++) assert_true((unsigned char)*c_ >= 0x20);          \
    } while (0)

// The call refused its input with such a message.
#define check_refused(expression, err, ...)             \
    do {                                                \
        assert_int_equal((expression), ATSI_BAD_INPUT); \
        assert_int_equal((err).status, ATSI_BAD_INPUT); \
        check_message(err, __VA_ARGS__);                \
    } while (0)

#endif
