#include "runtime/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"
#include "runtime/lookup.h"

const char *atsi_run_usage(void) {
    return "usage: atsi-run PLAN.atsp [-p TEXT | -f FILE] [options]\n"
           "\n"
           "prompt      -p TEXT, -f FILE, or standard input: plain completion; --tokens-in FILE: token ids\n"
           "            --chat: the model's chat format (with -p one turn, else interactive), --system TEXT, "
           "--chat-format NAME\n"
           "generation  -n N (default: until text or context end), --temp T (0.8; 0: greedy), --top-k K (40),\n"
           "            --top-p P (0.95), --min-p P (0.05), --repeat-penalty R (1), --seed S (random),\n"
           "            --stop TEXT (repeatable), --ignore-eos, --ctx N (at most the plan's), --chunk N,\n"
           "            --lookup N: where the text repeats itself, check up to N (7 at most) next tokens in one round\n"
           "output      --print-ids, --json, --stats, --quiet, --trace FILE,\n"
           "            --logits FILE: those of every token of the prompt, as raw 32-bit floats,\n"
           "            --save-routing FILE: how often each expert was chosen, for atsi-plan --routing (--stats keeps\n"
           "            it where atsi-plan looks by itself)\n"
           "machine     --device cpu|cuda|sim:FILE.json, --threads N, --isa NAME, --policy fifo|paper|none\n"
           "            --vram-reserve SIZE: give weights back when less of the card is free (default 256M, 0: "
           "never),\n"
           "            --strict: fail when the card has too little free memory for the plan\n"
           "scheduling  --reschedule-threshold E: decide again when speeds deviate by this part (default 0.15),\n"
           "            --reschedule-interval N: not before N times a token's time (default 5),\n"
           "            --reschedule-in-turn: between rounds, not beside them; --decisions FILE: a row for each\n"
           "ablation    --no-async: no copy and no processor works beside another, --no-split-rows: no unit is "
           "shared,\n"
           "            --no-reschedule: the first assignment stays, as the plan's times have it,\n"
           "            --no-exchange: the experts that a plan has on the GPU one by one stay the same,\n"
           "            --no-large-exchange: they change a few at a time, also right behind a prompt,\n"
           "            --no-repeats: threads wait for one that has lost its core to another program\n"
           "tokenizer   --tokenize [--parse-special], --detokenize \"1 2 3\"\n"
           "            --help, --version\n";
}

// ---- values -------------------------------------------------------------------------------------------------------

static enum atsi_status parse_whole(const char *option, const char *text, int64_t low, int64_t high, int64_t *out,
                                    struct atsi_error *err) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no whole number from %lld to %lld", option, text,
                         (long long)low, (long long)high);
    *out = value;
    return ATSI_OK;
}

static enum atsi_status parse_real(const char *option, const char *text, double low, double high, float *out,
                                   struct atsi_error *err) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= low && value <= high))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no number from %g to %g", option, text, low, high);
    *out = (float)value;
    return ATSI_OK;
}

// ---- the table of options -----------------------------------------------------------------------------------------

enum option_type {
    FLAG,
    TEXT,
    U32,
    INT,
    REAL,
    SIZE,
    SPECIAL
};

struct option {
    const char *name;
    enum option_type type;
    size_t offset;
    double low, high;
};

#define AT(member) offsetof(struct atsi_run_options, member)
static const struct option options[] = {
    {"-p", TEXT, AT(prompt), 0, 0},
    {"-f", TEXT, AT(prompt_path), 0, 0},
    {"--tokens-in", TEXT, AT(tokens_path), 0, 0},
    {"--logits", TEXT, AT(logits_path), 0, 0},
    {"--device", TEXT, AT(device), 0, 0},
    {"--isa", TEXT, AT(isa), 0, 0},
    {"--policy", TEXT, AT(policy), 0, 0},
    {"--trace", TEXT, AT(trace_path), 0, 0},
    {"--decisions", TEXT, AT(decisions_path), 0, 0},
    {"--save-routing", TEXT, AT(routing_path), 0, 0},
    {"--system", TEXT, AT(system_prompt), 0, 0},
    {"--chat-format", TEXT, AT(chat_format), 0, 0},
    {"--chat", FLAG, AT(chat), 0, 0},
    {"--parse-special", FLAG, AT(parse_special), 0, 0},
    {"--ignore-eos", FLAG, AT(ignore_eos), 0, 0},
    {"--print-ids", FLAG, AT(print_ids), 0, 0},
    {"--stats", FLAG, AT(stats), 0, 0},
    {"--no-async", FLAG, AT(no_async), 0, 0},
    {"--no-split-rows", FLAG, AT(no_split_rows), 0, 0},
    {"--no-reschedule", FLAG, AT(no_reschedule), 0, 0},
    {"--no-exchange", FLAG, AT(no_exchange), 0, 0},
    {"--no-large-exchange", FLAG, AT(no_large_exchange), 0, 0},
    {"--no-repeats", FLAG, AT(no_repeats), 0, 0},
    {"--reschedule-in-turn", FLAG, AT(reschedule_in_turn), 0, 0},
    {"--reschedule-threshold", REAL, AT(reschedule_threshold), 0.01, 1000},
    {"--reschedule-interval", REAL, AT(reschedule_interval), 1, 1e6},
    {"--json", FLAG, AT(json), 0, 0},
    {"--quiet", FLAG, AT(quiet), 0, 0},
    {"--ctx", U32, AT(n_ctx), 1, 1 << 30},
    {"--chunk", U32, AT(chunk), 1, 1 << 16},
    {"--lookup", U32, AT(n_lookup), 0, ATSI_LOOKUP_MOST},
    {"--threads", INT, AT(n_threads), 0, 1 << 20},
    {"--top-k", INT, AT(sampling.top_k), 0, 1 << 30},
    {"--strict", FLAG, AT(strict), 0, 0},
    {"--vram-reserve", SIZE, AT(vram_reserve_bytes), 0, 0},
    {"--temp", REAL, AT(sampling.temp), 0, 100},
    {"--top-p", REAL, AT(sampling.top_p), 0, 1},
    {"--min-p", REAL, AT(sampling.min_p), 0, 1},
    {"--repeat-penalty", REAL, AT(sampling.repeat_penalty), 0.01, 100},
    {"-n", SPECIAL, 0, 0, 0},
    {"--seed", SPECIAL, 0, 0, 0},
    {"--stop", SPECIAL, 0, 0, 0},
    {"--tokenize", FLAG, 0, 0, 0},
    {"--detokenize", SPECIAL, 0, 0, 0},
    {"--help", FLAG, 0, 0, 0},
    {"-h", FLAG, 0, 0, 0},
    {"--version", FLAG, 0, 0, 0},
};

static enum atsi_status parse_size(const char *option, const char *text, uint64_t *out, struct atsi_error *err) {
    if (atsi_size_parse(text, out)) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no size like 512M or 1.5G", option, text);
}

static const struct option *find_option(const char *name) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strcmp(options[i].name, name)) return &options[i];
    return NULL;
}

static enum atsi_status set_special(const struct option *o, const char *text, struct atsi_run_options *out,
                                    struct atsi_error *err) {
    int64_t number;
    if (!strcmp(o->name, "-n")) return parse_whole("-n", text, -1, INT32_MAX, &out->n_predict, err);
    if (!strcmp(o->name, "--seed")) {
        ATSI_TRY(parse_whole("--seed", text, 0, INT64_MAX, &number, err));
        out->sampling.seed = (uint64_t)number;
        out->seed_given = true;
        return ATSI_OK;
    }
    if (!strcmp(o->name, "--detokenize")) {
        out->mode = ATSI_RUN_DETOKENIZE;
        out->detokenize = text;
        return ATSI_OK;
    }
    if (!*text) return atsi_fail(err, ATSI_BAD_INPUT, "--stop: the text is empty");
    if (out->n_stops == ATSI_MAX_STOPS)
        return atsi_fail(err, ATSI_BAD_INPUT, "--stop: given more than %d times", ATSI_MAX_STOPS);
    out->stops[out->n_stops++] = text;
    return ATSI_OK;
}

static enum atsi_status set_value(const struct option *o, const char *text, struct atsi_run_options *out,
                                  struct atsi_error *err) {
    void *at = (char *)out + o->offset;
    int64_t number;
    switch (o->type) {
    case TEXT: *(const char **)at = text; return ATSI_OK;
    case REAL: return parse_real(o->name, text, o->low, o->high, at, err);
    case SIZE: return parse_size(o->name, text, at, err);
    case SPECIAL: return set_special(o, text, out, err);
    default: break;
    }
    ATSI_TRY(parse_whole(o->name, text, (int64_t)o->low, (int64_t)o->high, &number, err));
    if (o->type == U32)
        *(uint32_t *)at = (uint32_t)number;
    else
        *(int *)at = (int)number;
    return ATSI_OK;
}

static void set_flag(const struct option *o, struct atsi_run_options *out) {
    if (!strcmp(o->name, "--tokenize"))
        out->mode = ATSI_RUN_TOKENIZE;
    else if (!strcmp(o->name, "--help") || !strcmp(o->name, "-h"))
        out->mode = ATSI_RUN_HELP;
    else if (!strcmp(o->name, "--version"))
        out->mode = ATSI_RUN_VERSION;
    else
        *(bool *)((char *)out + o->offset) = true;
}

// ---- the whole line -----------------------------------------------------------------------------------------------

static enum atsi_status check_policy(const char *policy, struct atsi_error *err) {
    if (!policy || !strcmp(policy, "fifo") || !strcmp(policy, "paper") || !strcmp(policy, "none")) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "--policy: \"%s\" is not fifo, paper or none", policy);
}

// Of two files under one name the last to be written would be left. Devices take them all.
static enum atsi_status check_outputs(const struct atsi_run_options *o, struct atsi_error *err) {
    const struct {
        const char *option, *path;
    } files[] = {{"the plan", o->plan_path},
                 {"--logits", o->logits_path},
                 {"--trace", o->trace_path},
                 {"--decisions", o->decisions_path},
                 {"--save-routing", o->routing_path}};
    for (size_t i = 1; i < sizeof files / sizeof *files; i++)
        for (size_t k = 0; k < i && files[i].path && strncmp(files[i].path, "/dev/", 5) != 0; k++)
            if (files[k].path && !strcmp(files[k].path, files[i].path))
                return atsi_fail(err, ATSI_BAD_INPUT, "%s and %s have the same name, %s", files[k].option,
                                 files[i].option, files[i].path);
    return ATSI_OK;
}

static enum atsi_status check_combination(const struct atsi_run_options *o, struct atsi_error *err) {
    int n_prompts = (o->prompt != NULL) + (o->prompt_path != NULL) + (o->tokens_path != NULL);
    if (o->mode == ATSI_RUN_HELP || o->mode == ATSI_RUN_VERSION) return ATSI_OK;
    if (!o->plan_path) return atsi_fail(err, ATSI_BAD_INPUT, "no plan file given; see atsi-run --help");
    if (n_prompts > 1) return atsi_fail(err, ATSI_BAD_INPUT, "-p, -f and --tokens-in exclude each other");
    if (!o->chat && (o->system_prompt || o->chat_format))
        return atsi_fail(err, ATSI_BAD_INPUT, "%s needs --chat", o->system_prompt ? "--system" : "--chat-format");
    if (o->chat && o->tokens_path) return atsi_fail(err, ATSI_BAD_INPUT, "--chat and --tokens-in exclude each other");
    if (o->json && o->print_ids) return atsi_fail(err, ATSI_BAD_INPUT, "--json and --print-ids exclude each other");
    ATSI_TRY(check_outputs(o, err));
    return check_policy(o->policy, err);
}

enum atsi_status atsi_run_options_parse(int argc, char **argv, struct atsi_run_options *out, struct atsi_error *err) {
    memset(out, 0, sizeof *out);
    out->n_predict = -1;
    out->vram_reserve_bytes = 256 << 20;
    out->sampling = atsi_sampler_defaults();
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || !word[1]) {
            if (out->plan_path)
                return atsi_fail(err, ATSI_BAD_INPUT, "\"%s\": a second plan file; a prompt is given with -p TEXT",
                                 word);
            out->plan_path = word;
            continue;
        }
        const struct option *o = find_option(word);
        if (!o) return atsi_fail(err, ATSI_BAD_INPUT, "unknown option %s; see atsi-run --help", word);
        if (o->type == FLAG) {
            set_flag(o, out);
        } else {
            if (++i == argc) return atsi_fail(err, ATSI_BAD_INPUT, "%s needs a value", word);
            ATSI_TRY(set_value(o, argv[i], out, err));
        }
    }
    return check_combination(out, err);
}
