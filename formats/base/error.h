// error.h: the one error convention of the project.
//
// Every function that can fail returns enum atsi_status (0 is success) and takes, as its last parameter, a
// caller-owned `struct atsi_error *err` (may be NULL) into which it writes one sentence for the user: it names the file
// or thing, what is wrong (expected and found) and, where there is something to do, what. Nothing below the two main
// programs prints or exits. On failure outputs are unspecified but safe to pass to their free function.
#ifndef ATSI_FORMATS_BASE_ERROR_H
#define ATSI_FORMATS_BASE_ERROR_H

enum atsi_status {
    ATSI_OK = 0,
    ATSI_FAILED = 1,       // the work could not be done (I/O, memory, device): exit code 1
    ATSI_BAD_INPUT = 2,    // bad usage or a bad input file: exit code 2
    ATSI_INTERRUPTED = 130 // the user stopped it: exit code 130
};

struct atsi_error {
    enum atsi_status status;
    char text[512]; // one line, UTF-8, no newline, control characters escaped
};

// Records a formatted message and returns `status`, so that callers write `return atsi_fail(err, ATSI_BAD_INPUT, ...)`.
// Control and non-UTF-8 bytes of the formatted text (names from hostile files) are escaped as \xNN.
enum atsi_status atsi_fail(struct atsi_error *err, enum atsi_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

enum atsi_status atsi_out_of_memory(struct atsi_error *err); // ATSI_FAILED, where there is no more to say

// Puts "prefix: " in front of the recorded message (typically a file name). Returns err's status, ATSI_FAILED when NULL.
enum atsi_status atsi_fail_prefix(struct atsi_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__
// The analyzer looks at one file at a time: this tells it that a recorded failure never returns ATSI_OK.
#define atsi_fail(err, status, ...) (atsi_fail(err, status, __VA_ARGS__), (status))
#define atsi_fail_prefix(err, ...)  (atsi_fail_prefix(err, __VA_ARGS__), ATSI_FAILED)
#define atsi_out_of_memory(err)     (atsi_out_of_memory(err), ATSI_FAILED)
#endif

// Hands a failure on: `ATSI_TRY(f(x, err));`
#define ATSI_TRY(expression)                                      \
    do {                                                          \
        enum atsi_status atsi_try_status_ = (expression);         \
        if (atsi_try_status_ != ATSI_OK) return atsi_try_status_; \
    } while (0)

#endif
