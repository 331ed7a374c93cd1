// atsi-plan: reads a model, decides where its parts live, packs it into a plan file.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/base/standard_streams.h"
#include "formats/version.h"
#include "planner/commands.h"
#include "planner/schedule_file.h"
#include "planner/solve/instance.h"

static volatile sig_atomic_t stop; // set by a signal handler, read while writing

static void on_signal(int number) {
    // A second signal ends the program at once.
    signal(number, SIG_DFL);
    stop = 1;
}

// Reading a mapped file that somebody has cut short.
static void on_bus_error(int number) {
    static const char text[] = "atsi-plan: a file was cut short while it was being read\n";
    (void)number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(ATSI_FAILED);
    _exit(ATSI_FAILED);
}

static char *join_arguments(int argc, char **argv) {
    char *text;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    if (!stream) return NULL;
    for (int i = 0; i < argc; i++) fprintf(stream, "%s%s", i ? " " : "", argv[i]);
    return fclose(stream) == 0 ? text : NULL;
}

static enum atsi_status make(const struct atsi_plan_options *options, int argc, char **argv,
                             const struct atsi_console *console, struct atsi_error *err) {
    char *command_line = join_arguments(argc, argv);
    if (!command_line) return atsi_out_of_memory(err);
    enum atsi_status status = atsi_command_make(options, command_line, console, err);
    free(command_line);
    return status;
}

static enum atsi_status run(const struct atsi_plan_options *options, int argc, char **argv,
                            const struct atsi_console *console, struct atsi_error *err) {
    switch (options->mode) {
    case ATSI_PLAN_MAKE: return make(options, argc, argv, console, err);
    case ATSI_PLAN_ATTACH: return atsi_command_attach(options, console, err);
    case ATSI_PLAN_INFO: return atsi_command_info(options, console, err);
    case ATSI_PLAN_VERIFY: return atsi_command_verify(options, console, err);
    case ATSI_PLAN_SOLVE: return atsi_solve_file(options->input_path, console->out, err);
    case ATSI_PLAN_SCHEDULE: return atsi_schedule_file(options->input_path, console->out, err);
    case ATSI_PLAN_HELP: fputs(atsi_plan_usage(), console->out); return ATSI_OK;
    case ATSI_PLAN_VERSION: fprintf(console->out, "atsi-plan %s\n", ATSI_VERSION); return ATSI_OK;
    }
    return ATSI_OK;
}

int main(int argc, char **argv) {
    struct atsi_plan_options options;
    struct atsi_error err = {.text = ""};
    struct atsi_console console = {.out = stdout, .log = stderr, .is_terminal = isatty(STDERR_FILENO), .stop = &stop};
    atsi_claim_standard_streams();
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ, SIG_IGN); // a file that may not grow is an error of the write
    enum atsi_status status = atsi_plan_options_parse(argc, argv, &options, &err);
    console.quiet = options.quiet;
    if (status == ATSI_OK) status = run(&options, argc, argv, &console, &err);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == ATSI_OK)
        status = atsi_fail(&err, ATSI_FAILED, "standard output: cannot write");
    if (status != ATSI_OK) fprintf(stderr, "atsi-plan: %s\n", err.text);
    return (int)status;
}
