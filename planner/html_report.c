#include "planner/html_report.h"

#include <stdlib.h>
#include <string.h>

#include "formats/base/new_file.h"
#include "formats/version.h"

void atsi_html_text(FILE *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*text, out);
        }
    }
}

// Colours that stay apart for colour-blind readers, in both schemes; what they mean is written beside them too.
static const char style[] =
    ":root{color-scheme:light "
    "dark;--bg:#fbfbfa;--fg:#1d2125;--soft:#5d6670;--line:#d5d9dd;--gpu:#0b6bb3;--hot:#6bb0e0;--moved:#d98200;"
    "--cpu:#9aa3ab;--driver:#6b5b95;--compute:#3f7d5a;--kv:#008c9e;--spare:#e4e7ea}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#15181b;--fg:#e6e8ea;--soft:#9aa3ab;--line:#3a4046;--gpu:#4aa3e0;--"
    "hot:#2b76ad;"
    "--moved:#f0a83a;--cpu:#6c757d;--driver:#a593d6;--compute:#6fbf8f;--kv:#3fc1d0;--spare:#2a2f34}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;"
    "padding:0 1rem}\n"
    "h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .4rem}p{margin:.4rem 0}.soft{color:var(--soft)}\n"
    "svg{width:100%;height:auto;display:block}svg text{fill:var(--fg);font:11px system-ui,sans-serif}\n"
    "svg text.soft{fill:var(--soft)}svg line{stroke:var(--line)}\n"
    "table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}\n"
    "td,th{padding:.15rem .8rem .15rem 0;text-align:right;border-bottom:1px solid var(--line)}\n"
    "td:first-child,th:first-child{text-align:left}details{margin:.4rem 0}summary{cursor:pointer;color:var(--soft)}\n"
    ".key{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em;vertical-align:-.05em}\n"
    ".f-gpu{fill:var(--gpu);background:var(--gpu)}.f-moved{fill:var(--moved);background:var(--moved)}\n"
    ".f-hot{fill:var(--hot);background:var(--hot)}\n"
    ".f-cpu{fill:var(--cpu);background:var(--cpu)}.f-driver{fill:var(--driver);background:var(--driver)}\n"
    ".f-compute{fill:var(--compute);background:var(--compute)}.f-kv{fill:var(--kv);background:var(--kv)}\n"
    ".f-spare{fill:var(--spare);background:var(--spare)}.s-gpu{stroke:var(--gpu);fill:none;stroke-width:2}\n"
    "@media(max-width:40rem){.wide{overflow-x:auto}.wide svg{min-width:40rem}}\n";

static void write_head(FILE *out, const struct atsi_report_page *page) {
    const struct atsi_plan *plan = page->plan;
    const struct atsi_placement *p = page->placement;
    const char *name = plan->model.name[0] ? plan->model.name : plan->model.arch;
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
          out);
    atsi_html_text(out, name);
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body>\n<h1>", style);
    atsi_html_text(out, name);
    fputs("</h1>\n<p class=\"soft\">", out);
    atsi_html_text(out, plan->model.arch);
    fprintf(out, ", context %u, chunk %u, cache %s; planned for ", plan->limits.n_ctx, plan->limits.chunk,
            atsi_dtype_name(plan->limits.kv_type));
    atsi_html_text(out, plan->device);
    fprintf(out, "%s</p>\n", page->profile->is_modelled ? " (modelled from published figures, not measured)" : "");
    fprintf(out,
            "<p>Predicted: <b>%.2f tokens/s</b> in decode (%.2f without dynamic transfer), <b>%.0f tokens/s</b> in "
            "prefill (%.0f), at position %u. ",
            1e6 / p->decode_us, 1e6 / p->decode_static_us, 1e6 * plan->limits.chunk / p->prefill_us,
            1e6 * plan->limits.chunk / p->prefill_static_us, plan->limits.n_ctx / 2);
    if (strcmp(plan->certificate.milp_status, "skipped") != 0)
        fprintf(out, "Certified by GLPK: no placement of these units is more than %.4f %% better.",
                100 * plan->certificate.gap);
    fputs("</p>\n", out);
}

static enum atsi_status write_page(FILE *out, const struct atsi_report_page *page, struct atsi_error *err) {
    write_head(out, page);
    atsi_html_memory(out, page);
    atsi_html_grid(out, page);
    atsi_html_density(out, page);
    atsi_html_timeline(out, page);
    ATSI_TRY(atsi_html_budgets(out, page, err));
    fprintf(out, "<p class=\"soft\">atsi-plan %s</p>\n</body></html>\n", ATSI_VERSION);
    return ATSI_OK;
}

static enum atsi_status write_text(const struct atsi_report_page *page, char **text, size_t *size,
                                   struct atsi_error *err) {
    FILE *out = open_memstream(text, size);
    if (!out) return atsi_fail(err, ATSI_FAILED, "out of memory while writing a report");
    enum atsi_status status = write_page(out, page, err);
    if (fclose(out) != 0 && status == ATSI_OK)
        status = atsi_fail(err, ATSI_FAILED, "out of memory while writing a report");
    return status;
}

enum atsi_status atsi_html_report(const char *path, const struct atsi_plan *plan,
                                  const struct atsi_device_profile *profile, const struct atsi_place_options *options,
                                  const struct atsi_placement *placement, struct atsi_error *err) {
    struct atsi_report_page page = {.plan = plan, .profile = profile, .options = options, .placement = placement};
    char *text = NULL;
    size_t size;
    enum atsi_status status =
        atsi_forecast_round(plan, ATSI_DECODE, ATSI_POLICY_FIFO, plan->limits.temp_bytes, &page.decode, err);
    if (status == ATSI_OK) status = write_text(&page, &text, &size, err);
    if (status == ATSI_OK) status = atsi_write_file(path, text, size, err);
    free(text);
    atsi_forecast_free(&page.decode);
    return status;
}
