#include "planner/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"

const char *atsi_plan_usage(void) {
    return "usage: atsi-plan MODEL.gguf [options]           make a plan that atsi-run runs\n"
           "       atsi-plan PLAN.atsp --attach MODEL.gguf  complete a plan that was made without weights\n"
           "       atsi-plan --info PLAN | --verify PLAN | --solve FILE.json | --schedule FILE.json\n"
           "\n"
           "output   -o FILE (default: the model's name with .atsp, in the current folder)\n"
           "         --vocab-only: a plan that only tokenises; --no-weights: a plan without tensors;\n"
           "         --ship: every tensor compressed for transport; --json, --quiet\n"
           "budget   --vram SIZE (default: what the GPU has free less 256M; 0: CPU only),\n"
           "         --ctx N (default: the model's, at most 4096), --kv-type f32|f16|q8_0 (default f16), --threads N,\n"
           "         --chunk N (tokens of a prefill round; default: chosen with the placement)\n"
           "         sizes: bytes, or with K, M, G (powers of 1024), fractions allowed\n"
           "place    --device FILE.json: for the machine of a stored profile; else this machine, profiled once:\n"
           "         --save-profile FILE.json, --reprofile, --profile-seconds S (most that it may take, default 60)\n"
           "         --objective decode|prefill|W (0..1, default 0.2), --pin 'REGEX=gpu|cpu' (repeatable),\n"
           "         --placement tensor|tensor-static|layer (for comparison: not for dynamic transfer; whole layers)\n"
           "         --experts auto|unit|single: all experts of an operation on one side, or the hottest on the GPU;\n"
           "         --routing FILE|none: which are chosen most often (default: as atsi-run --stats has counted, if it "
           "has)\n"
           "look     --explain: every unit, its times and why it is where it is; --what-if: budgets and contexts;\n"
           "         --report FILE.html: all of it as one page; none of them writes a plan unless -o is given\n"
           "         --help, --version\n";
}

enum option_type {
    FLAG,
    TEXT,
    COUNT,
    MODE_TEXT,
    MODE_FLAG,
    SIZE,
    KV_TYPE,
    OBJECTIVE,
    PLACEMENT,
    EXPERTS,
    ROUTING,
    SECONDS,
    PIN
};

struct option {
    const char *name;
    enum option_type type;
    size_t offset;  // of what is set; MODE_*: the mode itself
    long low, high; // COUNT
};

#define AT(member) offsetof(struct atsi_plan_options, member)
static const struct option options[] = {
    {"-o", TEXT, AT(output_path), 0, 0},
    {"--attach", TEXT, AT(attach_path), 0, 0},
    {"--vram", SIZE, AT(vram_bytes), 0, 0},
    {"--ctx", COUNT, AT(n_ctx), 1, 1 << 28},
    {"--chunk", COUNT, AT(chunk), 1, 1 << 16},
    {"--threads", COUNT, AT(n_threads), 0, 1 << 12},
    {"--kv-type", KV_TYPE, 0, 0, 0},
    {"--device", TEXT, AT(device_path), 0, 0},
    {"--save-profile", TEXT, AT(save_profile_path), 0, 0},
    {"--report", TEXT, AT(report_path), 0, 0},
    {"--routing", ROUTING, 0, 0, 0},
    {"--reprofile", FLAG, AT(reprofile), 0, 0},
    {"--profile-seconds", SECONDS, 0, 0, 0},
    {"--objective", OBJECTIVE, 0, 0, 0},
    {"--placement", PLACEMENT, 0, 0, 0},
    {"--experts", EXPERTS, 0, 0, 0},
    {"--pin", PIN, 0, 0, 0},
    {"--explain", FLAG, AT(explain), 0, 0},
    {"--what-if", FLAG, AT(what_if), 0, 0},
    {"--vocab-only", FLAG, AT(vocab_only), 0, 0},
    {"--no-weights", FLAG, AT(no_weights), 0, 0},
    {"--ship", FLAG, AT(ship), 0, 0},
    {"--json", FLAG, AT(json), 0, 0},
    {"--quiet", FLAG, AT(quiet), 0, 0},
    {"--info", MODE_TEXT, ATSI_PLAN_INFO, 0, 0},
    {"--verify", MODE_TEXT, ATSI_PLAN_VERIFY, 0, 0},
    {"--solve", MODE_TEXT, ATSI_PLAN_SOLVE, 0, 0},
    {"--schedule", MODE_TEXT, ATSI_PLAN_SCHEDULE, 0, 0},
    {"--help", MODE_FLAG, ATSI_PLAN_HELP, 0, 0},
    {"-h", MODE_FLAG, ATSI_PLAN_HELP, 0, 0},
    {"--version", MODE_FLAG, ATSI_PLAN_VERSION, 0, 0},
};

// Options whose answers stand in a plan that --attach completes.
static bool decides(const struct option *o) {
    static const char *const names[] = {"--vram",      "--ctx",       "--chunk",   "--kv-type",
                                        "--objective", "--placement", "--experts", "--reprofile"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(o->name, names[i])) return true;
    return false;
}

static const struct option *find_option(const char *name) {
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strcmp(options[i].name, name)) return &options[i];
    return NULL;
}

// ---- values -------------------------------------------------------------------------------------------------------

static enum atsi_status parse_count(const struct option *o, const char *text, uint32_t *out, struct atsi_error *err) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!(*text >= '0' && *text <= '9') || *end || errno || value < o->low || value > o->high)
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no whole number from %ld to %ld", o->name, text, o->low,
                         o->high);
    *out = (uint32_t)value;
    return ATSI_OK;
}

static enum atsi_status parse_kv_type(const char *text, enum atsi_dtype *out, struct atsi_error *err) {
    if (!strcmp(text, "f32"))
        *out = ATSI_F32;
    else if (!strcmp(text, "f16"))
        *out = ATSI_F16;
    else if (!strcmp(text, "q8_0"))
        *out = ATSI_Q8_0;
    else
        return atsi_fail(err, ATSI_BAD_INPUT, "--kv-type: \"%s\" is not f32, f16 or q8_0", text);
    return ATSI_OK;
}

static bool parse_real(const char *text, double low, double high, double *out) {
    char *end;
    *out = strtod(text, &end);
    return *text >= '0' && *text <= '9' && !*end && *out >= low && *out <= high;
}

static enum atsi_status parse_objective(const char *text, double *out, struct atsi_error *err) {
    if (!strcmp(text, "decode"))
        *out = 0;
    else if (!strcmp(text, "prefill"))
        *out = 1;
    else if (!parse_real(text, 0, 1, out))
        return atsi_fail(err, ATSI_BAD_INPUT, "--objective: \"%s\" is not decode, prefill or a weight from 0 to 1",
                         text);
    return ATSI_OK;
}

// The place of text among three words, -1 when it is none of them.
static int find_word(const char *text, const char *const words[3]) {
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, words[i])) return i;
    return -1;
}

static enum atsi_status parse_placement(const char *text, enum atsi_place_goal *out, struct atsi_error *err) {
    int i = find_word(text, (const char *const[]){"tensor", "tensor-static", "layer"});
    if (i < 0) return atsi_fail(err, ATSI_BAD_INPUT, "--placement: \"%s\" is not tensor, tensor-static or layer", text);
    *out = (enum atsi_place_goal)i;
    return ATSI_OK;
}

static enum atsi_status parse_routing(const char *text, struct atsi_plan_options *out, struct atsi_error *err) {
    if (!*text) return atsi_fail(err, ATSI_BAD_INPUT, "--routing: the name is empty");
    out->no_routing = !strcmp(text, "none");
    out->routing_path = out->no_routing ? NULL : text;
    return ATSI_OK;
}

static enum atsi_status parse_experts(const char *text, enum atsi_experts_way *out, struct atsi_error *err) {
    int i = find_word(text, (const char *const[]){"auto", "unit", "single"});
    if (i < 0) return atsi_fail(err, ATSI_BAD_INPUT, "--experts: \"%s\" is not auto, unit or single", text);
    *out = (enum atsi_experts_way)i;
    return ATSI_OK;
}

static enum atsi_status parse_seconds(const char *text, double *out, struct atsi_error *err) {
    if (parse_real(text, 0, 86400, out)) return ATSI_OK;
    return atsi_fail(err, ATSI_BAD_INPUT, "--profile-seconds: \"%s\" is no number from 0 to 86400", text);
}

static enum atsi_status parse_pin(char *text, struct atsi_plan_options *out, struct atsi_error *err) {
    char *equals = strrchr(text, '=');
    if (!equals || equals == text || (strcmp(equals + 1, "gpu") != 0 && strcmp(equals + 1, "cpu") != 0))
        return atsi_fail(err, ATSI_BAD_INPUT, "--pin: \"%s\" is not REGEX=gpu or REGEX=cpu", text);
    if (out->n_pins == ATSI_PLAN_MAX_PINS)
        return atsi_fail(err, ATSI_BAD_INPUT, "--pin: given more than %d times", ATSI_PLAN_MAX_PINS);
    struct atsi_pin *pin = &out->pins[out->n_pins++];
    pin->side = strcmp(equals + 1, "gpu") == 0 ? ATSI_GPU : ATSI_CPU;
    *equals = 0;
    pin->pattern = text;
    return ATSI_OK;
}

static enum atsi_status set_mode(enum atsi_plan_mode mode, const char *path, struct atsi_plan_options *out,
                                 struct atsi_error *err) {
    if (out->mode != ATSI_PLAN_MAKE && out->mode != mode)
        return atsi_fail(err, ATSI_BAD_INPUT, "--info, --verify, --solve and --schedule exclude each other");
    if (path && out->input_path) return atsi_fail(err, ATSI_BAD_INPUT, "\"%s\": a second input file", path);
    out->mode = mode;
    if (path) out->input_path = path;
    return ATSI_OK;
}

static enum atsi_status set_value(const struct option *o, char *text, struct atsi_plan_options *out,
                                  struct atsi_error *err) {
    void *at = (char *)out + o->offset;
    switch (o->type) {
    case TEXT:
        if (!*text) return atsi_fail(err, ATSI_BAD_INPUT, "%s: the name is empty", o->name);
        *(const char **)at = text;
        return ATSI_OK;
    case COUNT: return parse_count(o, text, at, err);
    case KV_TYPE: return parse_kv_type(text, &out->kv_type, err);
    case OBJECTIVE: return parse_objective(text, &out->prefill_weight, err);
    case PLACEMENT: return parse_placement(text, &out->goal, err);
    case ROUTING: return parse_routing(text, out, err);
    case EXPERTS: return parse_experts(text, &out->experts, err);
    case SECONDS: return parse_seconds(text, &out->profile_seconds, err);
    case PIN: return parse_pin(text, out, err);
    case MODE_TEXT: return set_mode((enum atsi_plan_mode)o->offset, text, out, err);
    case SIZE:
        out->vram_given = true;
        if (atsi_size_parse(text, at)) return ATSI_OK;
        return atsi_fail(err, ATSI_BAD_INPUT, "%s: \"%s\" is no size (examples: 6G, 5.5G, 512M, 1048576)", o->name,
                         text);
    default: return ATSI_OK;
    }
}

// ---- the whole line -----------------------------------------------------------------------------------------------

static enum atsi_status check_combination(struct atsi_plan_options *o, struct atsi_error *err) {
    if (o->mode == ATSI_PLAN_HELP || o->mode == ATSI_PLAN_VERSION) return ATSI_OK;
    if (!o->input_path || !*o->input_path)
        return atsi_fail(err, ATSI_BAD_INPUT, "no model file given; see atsi-plan --help");
    if ((o->mode != ATSI_PLAN_MAKE || o->attach_path || o->vocab_only) &&
        (o->device_path || o->save_profile_path || o->n_pins || o->explain || o->what_if || o->report_path ||
         o->routing_path || o->no_routing || o->experts != ATSI_EXPERTS_AUTO))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "--device, --save-profile, --pin, --experts, --explain, --what-if, --report and --routing "
                         "place a model: they need one");
    if (o->experts == ATSI_EXPERTS_SINGLE && o->goal != ATSI_PLACE_DYNAMIC)
        return atsi_fail(err, ATSI_BAD_INPUT, "--experts single: not with --placement tensor-static or layer");
    if (o->mode != ATSI_PLAN_MAKE && (o->output_path || o->attach_path || o->vocab_only || o->no_weights || o->ship))
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "-o, --attach, --vocab-only, --no-weights and --ship make a plan; they do not go with "
                         "--info, --verify, --solve or --schedule");
    if (o->attach_path && (o->vocab_only || o->no_weights))
        return atsi_fail(err, ATSI_BAD_INPUT, "--attach adds the weights; it excludes --no-weights and --vocab-only");
    if (o->attach_path && o->decision)
        return atsi_fail(err, ATSI_BAD_INPUT,
                         "%s: the plan that --attach completes has decided that; plan the model anew", o->decision);
    if (o->vocab_only && (o->no_weights || o->ship))
        return atsi_fail(err, ATSI_BAD_INPUT, "--vocab-only has no weights; it excludes --no-weights and --ship");
    if (o->no_weights && o->ship) return atsi_fail(err, ATSI_BAD_INPUT, "--no-weights and --ship exclude each other");
    if (o->device_path && o->save_profile_path)
        return atsi_fail(err, ATSI_BAD_INPUT, "--save-profile keeps what is measured here; with --device nothing is");
    if (o->n_pins && o->vram_given && o->vram_bytes == 0)
        return atsi_fail(err, ATSI_BAD_INPUT, "--pin chooses between CPU and GPU; --vram 0 leaves no choice");
    if (o->attach_path) o->mode = ATSI_PLAN_ATTACH;
    return ATSI_OK;
}

enum atsi_status atsi_plan_options_parse(int argc, char **argv, struct atsi_plan_options *out, struct atsi_error *err) {
    memset(out, 0, sizeof *out);
    out->kv_type = ATSI_F16;
    out->prefill_weight = 0.2;
    out->profile_seconds = 60;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (word[0] != '-' || !word[1]) {
            if (out->input_path) return atsi_fail(err, ATSI_BAD_INPUT, "\"%s\": a second input file", word);
            out->input_path = word;
            continue;
        }
        const struct option *o = find_option(word);
        if (!o) return atsi_fail(err, ATSI_BAD_INPUT, "unknown option %s; see atsi-plan --help", word);
        if (decides(o)) out->decision = o->name;
        if (o->type == FLAG) {
            *(bool *)((char *)out + o->offset) = true;
        } else if (o->type == MODE_FLAG) {
            out->mode = (enum atsi_plan_mode)o->offset;
            return ATSI_OK; // help and version answer whatever else stands on the line
        } else {
            if (++i == argc) return atsi_fail(err, ATSI_BAD_INPUT, "%s needs a value", word);
            ATSI_TRY(set_value(o, argv[i], out, err));
        }
    }
    return check_combination(out, err);
}
