// html_charts.c: the figures of the report. Lengths are in the units of an SVG of WIDTH; the page scales them.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/size.h"
#include "planner/html_report.h"
#include "planner/what_if.h"

enum {
    WIDTH = 960,
    LABEL = 90 // room for the names of rows
};
static const double mib = 1 << 20;

static void open_figure(FILE *out, const char *id, const char *title, int height) {
    fprintf(out,
            "<section id=\"%s\"><h2>%s</h2>\n<div class=\"wide\"><svg viewBox=\"0 0 %d %d\" "
            "role=\"img\"><title>%s</title>\n",
            id, title, WIDTH, height, title);
}

static void close_figure(FILE *out) { fputs("</svg></div>\n", out); }

static void text_at(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    atsi_html_text(out, text);
    fputs("</text>\n", out);
}

static void rect_open(FILE *out, double x, double y, double width, double height, const char *class_name) {
    fprintf(out, "<rect class=\"f-%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>", class_name, x, y,
            width, height);
}

static void rect_close(FILE *out) { fputs("</title></rect>\n", out); }

static void key(FILE *out, const char *class_name, const char *text) {
    fprintf(out, "<span class=\"key f-%s\"></span>%s", class_name, text);
}

// ---- memory -------------------------------------------------------------------------------------------------------

void atsi_html_memory(FILE *out, const struct atsi_report_page *page) {
    const struct atsi_budget *b = &page->placement->budget;
    const struct {
        const char *name, *class_name;
        uint64_t bytes;
    } parts[] = {{"driver", "driver", b->driver},
                 {"compute", "compute", b->compute},
                 {"KV and states", "kv", b->states},
                 {"temporary", "moved", b->temp},
                 {"resident weights", "gpu", b->resident},
                 {"single experts", "hot", b->experts},
                 {"spare", "spare", b->spare}};
    char size[32];
    double x = 0;
    open_figure(out, "memory", "GPU memory", 60);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        double width = WIDTH * (double)parts[i].bytes / (double)b->vram;
        rect_open(out, x, 4, width, 36, parts[i].class_name);
        fprintf(out, "%s: %s", parts[i].name, atsi_size_format(size, sizeof size, parts[i].bytes));
        rect_close(out);
        x += width;
    }
    text_at(out, 0, 56, "start", "0");
    text_at(out, WIDTH, 56, "end", atsi_size_format(size, sizeof size, b->vram));
    close_figure(out);
    fputs("<table><tr><th>what</th><th>MiB</th><th>share</th></tr>\n", out);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].bytes == 0) continue;
        fprintf(out, "<tr><td><span class=\"key f-%s\"></span>%s</td><td>%.0f</td><td>%.1f %%</td></tr>\n",
                parts[i].class_name, parts[i].name, (double)parts[i].bytes / mib,
                100.0 * (double)parts[i].bytes / (double)b->vram);
    }
    fputs("</table></section>\n", out);
}

// ---- the model as a grid ------------------------------------------------------------------------------------------

static const char *side_class(const struct atsi_report_page *page, uint32_t i) {
    if (page->plan->program.units[i].backend == ATSI_GPU) return "gpu";
    return page->decode.schedule.assignment[i] == ATSI_GPU ? "moved" : "cpu";
}

static const char *side_text(const char *class_name) {
    return !strcmp(class_name, "gpu")     ? "on the GPU"
           : !strcmp(class_name, "moved") ? "moved to the GPU in a decode round"
                                          : "on the CPU";
}

// Layers are rows; embedding and head have one of their own.
static double row_bytes(const struct atsi_plan *plan, int32_t layer, enum atsi_unit_kind outside) {
    double bytes = 0;
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        if (layer >= 0 ? u->layer == layer : u->layer < 0 && u->kind == outside)
            bytes += (double)atsi_budget_unit(plan, u);
    }
    return bytes;
}

static int32_t count_layers(const struct atsi_plan *plan) {
    int32_t n = 0;
    for (uint32_t i = 0; i < plan->program.n_units; i++)
        if (plan->program.units[i].layer >= n) n = plan->program.units[i].layer + 1;
    return n;
}

static void grid_row(FILE *out, const struct atsi_report_page *page, int32_t layer, enum atsi_unit_kind outside,
                     double y, double height, double bytes_per_unit) {
    const struct atsi_plan *plan = page->plan;
    double x = LABEL;
    char size[32];
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        if (layer >= 0 ? u->layer != layer : u->layer >= 0 || u->kind != outside) continue;
        double width = (double)atsi_budget_unit(plan, u) / bytes_per_unit;
        rect_open(out, x, y, fmax(width - 0.6, 0.4), height - 1, side_class(page, i));
        atsi_html_text(out, u->name);
        fprintf(out, ": %s, %s", atsi_size_format(size, sizeof size, atsi_budget_unit(plan, u)),
                side_text(side_class(page, i)));
        rect_close(out);
        x += width;
    }
}

void atsi_html_grid(FILE *out, const struct atsi_report_page *page) {
    const struct atsi_plan *plan = page->plan;
    int32_t n_layers = count_layers(plan);
    double widest = fmax(row_bytes(plan, -1, ATSI_UNIT_EMBED), row_bytes(plan, -1, ATSI_UNIT_HEAD));
    for (int32_t l = 0; l < n_layers; l++) widest = fmax(widest, row_bytes(plan, l, ATSI_UNIT_MATRIX));
    double per_unit = widest / (WIDTH - LABEL), height = n_layers > 48 ? 9 : 13, y = 4;
    char name[32];
    uint32_t n_gpu = 0, n_moved = 0;
    open_figure(out, "grid", "Where every unit lives", (int)(8 + height * (n_layers + 2)));
    for (int32_t row = -1; row <= n_layers; row++, y += height) {
        bool is_layer = row >= 0 && row < n_layers;
        snprintf(name, sizeof name, row < 0 ? "embedding" : is_layer ? "layer %d" : "head", row);
        if (!is_layer || row % (n_layers > 48 ? 4 : 2) == 0) text_at(out, LABEL - 8, y + height - 2, "end", name);
        grid_row(out, page, is_layer ? row : -1, row < 0 ? ATSI_UNIT_EMBED : ATSI_UNIT_HEAD, y, height, per_unit);
    }
    close_figure(out);
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        n_gpu += !strcmp(side_class(page, i), "gpu");
        n_moved += !strcmp(side_class(page, i), "moved");
    }
    fputs("<p>", out);
    key(out, "gpu", "on the GPU");
    key(out, "moved", "moved to the GPU in a decode round");
    key(out, "cpu", "on the CPU");
    fprintf(out,
            "</p>\n<p>Every row is a layer, every box a matrix or a cache, as wide as its bytes: %u of %u units live "
            "on the GPU, %u are "
            "moved there in a decode round.</p></section>\n",
            n_gpu, plan->program.n_units, n_moved);
}

// ---- density ------------------------------------------------------------------------------------------------------

// The unit's name without its layer.
static const char *role_of(const struct atsi_unit *u) {
    const char *dot = u->layer >= 0 ? strchr(u->name, '.') : NULL;
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : u->name;
}

struct role {
    const char *name;
    double cpu, gpu; // microseconds a MiB, mean over its units
    uint32_t n;
};
enum {
    MAX_ROLES = 64
};

static uint32_t list_roles(const struct atsi_plan *plan, struct role roles[MAX_ROLES]) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->program.n_units; i++) {
        const struct atsi_unit *u = &plan->program.units[i];
        double size = (double)atsi_budget_unit(plan, u) / mib;
        uint32_t r = 0;
        if (size <= 0) continue;
        while (r < n && strcmp(roles[r].name, role_of(u)) != 0) r++;
        if (r == MAX_ROLES) continue;
        if (r == n) roles[n++] = (struct role){.name = role_of(u)};
        roles[r].cpu += plan->decode_times[i].cpu_us / size;
        roles[r].gpu += plan->decode_times[i].gpu_us / size;
        roles[r].n++;
    }
    for (uint32_t r = 0; r < n; r++) {
        roles[r].cpu /= roles[r].n;
        roles[r].gpu /= roles[r].n;
    }
    return n;
}

void atsi_html_density(FILE *out, const struct atsi_report_page *page) {
    struct role roles[MAX_ROLES];
    uint32_t n = list_roles(page->plan, roles);
    double most = 1e-9;
    for (uint32_t r = 0; r < n; r++) most = fmax(most, fmax(roles[r].cpu, roles[r].gpu));
    open_figure(out, "density", "Time a MiB in decode, on either side", (int)(8 + 26 * n));
    for (uint32_t r = 0; r < n; r++) {
        double y = 4 + 26.0 * r, scale = (WIDTH - LABEL - 160) / most, x = LABEL + 40;
        char value[64];
        text_at(out, x - 8, y + 14, "end", roles[r].name);
        rect_open(out, x, y, fmax(roles[r].cpu * scale, 0.5), 10, "cpu");
        fprintf(out, "CPU %.2f", roles[r].cpu);
        rect_close(out);
        rect_open(out, x, y + 11, fmax(roles[r].gpu * scale, 0.5), 10, "gpu");
        fprintf(out, "GPU %.2f", roles[r].gpu);
        rect_close(out);
        snprintf(value, sizeof value, "%.2f / %.2f", roles[r].cpu, roles[r].gpu);
        text_at(out, x + fmax(roles[r].cpu, roles[r].gpu) * scale + 6, y + 14, "start", value);
    }
    close_figure(out);
    fputs("<p>", out);
    key(out, "cpu", "CPU");
    key(out, "gpu", "GPU");
    fputs("</p>\n<p>Microseconds a MiB, the mean over the layers. What has a long grey bar and a short blue one gains "
          "most from a "
          "MiB of GPU memory. Experts count with all their bytes, and only the chosen ones are read.</p></section>\n",
          out);
}

// ---- a decode round -----------------------------------------------------------------------------------------------

static void lane(FILE *out, const char *name, double y) {
    text_at(out, LABEL - 8, y + 19, "end", name);
    fprintf(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", LABEL, y + 30, WIDTH, y + 30);
}

static void span(FILE *out, double from_us, double to_us, double total_us, double y, const char *class_name,
                 const char *name) {
    double scale = (WIDTH - LABEL) / total_us;
    if (to_us <= from_us) return;
    rect_open(out, LABEL + from_us * scale, y + 4, fmax((to_us - from_us) * scale, 0.3), 24, class_name);
    atsi_html_text(out, name);
    fprintf(out, ": %.0f to %.0f us", from_us, to_us);
    rect_close(out);
}

void atsi_html_timeline(FILE *out, const struct atsi_report_page *page) {
    const struct atsi_schedule *s = &page->decode.schedule;
    const struct atsi_program *p = &page->plan->program;
    double total = s->total_us, busy[3] = {0}, lanes[3] = {4, 40, 76};
    char end[48];
    open_figure(out, "timeline", "One decode round with units streamed, predicted", 132);
    lane(out, "CPU", lanes[0]);
    lane(out, "GPU", lanes[1]);
    lane(out, "copy engine", lanes[2]);
    for (uint32_t i = 0; i < p->n_units; i++) {
        int where = s->assignment[i] == ATSI_GPU;
        bool moved = where && p->units[i].backend == ATSI_CPU;
        span(out, s->timing.start_us[i], s->timing.end_us[i], total, lanes[where],
             moved   ? "moved"
             : where ? "gpu"
                     : "cpu",
             p->units[i].name);
        busy[where] += s->timing.end_us[i] - s->timing.start_us[i];
        if (!moved) continue;
        span(out, s->timing.transfer_start_us[i], s->timing.transfer_end_us[i], total, lanes[2], "moved",
             p->units[i].name);
        busy[2] += s->timing.transfer_end_us[i] - s->timing.transfer_start_us[i];
    }
    text_at(out, LABEL, 124, "start", "0");
    snprintf(end, sizeof end, "%.2f ms", total / 1e3);
    text_at(out, WIDTH, 124, "end", end);
    close_figure(out);
    fprintf(out,
            "<p>A token takes %.2f ms: the CPU computes %.0f %% of it, the GPU %.0f %%, the copy engine is busy %.0f "
            "%% (experts are read in "
            "place and shown as a copy). No assignment of this round takes less than %.2f ms.",
            total / 1e3, 100 * busy[0] / total, 100 * busy[1] / total, 100 * busy[2] / total, s->lower_bound_us / 1e3);
    double shares_us = page->placement->decode.shares_us;
    if (shares_us > 0 && shares_us < total && shares_us <= page->placement->decode.best_us)
        fprintf(out, " With both processors on each unit of the CPU instead it takes %.2f ms: the rate above.",
                shares_us / 1e3);
    fputs("</p></section>\n", out);
}

// ---- rate against budget ------------------------------------------------------------------------------------------

struct rate_point {
    double gib, decode, prefill; // tokens a second; 0: too small
};

static enum atsi_status price_budgets(const struct atsi_report_page *page, struct rate_point *points, uint32_t *n,
                                      struct atsi_error *err) {
    uint64_t budgets[ATSI_WHAT_IF_MAX_BUDGETS] = {0};
    uint32_t n_budgets = atsi_what_if_budgets(page->profile, budgets);
    struct atsi_elsewhere e = {0};
    for (*n = 0; *n < n_budgets && !e.nothing_waits; ++*n) {
        ATSI_TRY(atsi_place_elsewhere(page->plan, page->profile, page->options, budgets[*n], page->plan->limits.n_ctx,
                                      &e, err));
        points[*n] = (struct rate_point){.gib = (double)budgets[*n] / mib / 1024};
        if (!e.fits) continue;
        points[*n].decode = 1e6 / e.decode_us;
        points[*n].prefill = 1e6 * e.chunk / e.prefill_us;
    }
    return ATSI_OK;
}

static void draw_rates(FILE *out, const struct rate_point *points, uint32_t n, double here_gib, double here_rate) {
    double most = here_rate, widest = fmax(here_gib, points[n - 1].gib), height = 180;
    for (uint32_t i = 0; i < n; i++) most = fmax(most, points[i].decode);
    double x_scale = (WIDTH - LABEL - 60) / widest, y_scale = height / most;
    fprintf(out, "<line x1=\"%d\" y1=\"%.0f\" x2=\"%d\" y2=\"%.0f\"/>\n<polyline class=\"s-gpu\" points=\"", LABEL,
            height + 20, WIDTH, height + 20);
    for (uint32_t i = 0; i < n; i++)
        if (points[i].decode > 0)
            fprintf(out, "%.1f,%.1f ", LABEL + points[i].gib * x_scale, 20 + height - points[i].decode * y_scale);
    fputs("\"/>\n", out);
    for (uint32_t i = 0; i < n; i++) {
        char text[48];
        double x = LABEL + points[i].gib * x_scale;
        snprintf(text, sizeof text, "%g GiB", points[i].gib);
        text_at(out, x, height + 36, "middle", text);
        if (points[i].decode <= 0) continue;
        fprintf(out, "<circle class=\"f-gpu\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n", x,
                20 + height - points[i].decode * y_scale);
        snprintf(text, sizeof text, "%.1f", points[i].decode);
        text_at(out, x, 12 + height - points[i].decode * y_scale, "middle", text);
    }
    fprintf(out, "<circle class=\"f-moved\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"><title>this plan</title></circle>\n",
            LABEL + here_gib * x_scale, 20 + height - here_rate * y_scale);
}

enum atsi_status atsi_html_budgets(FILE *out, const struct atsi_report_page *page, struct atsi_error *err) {
    struct rate_point points[ATSI_WHAT_IF_MAX_BUDGETS] = {{0, 0, 0}};
    uint32_t n = 0;
    ATSI_TRY(price_budgets(page, points, &n, err));
    open_figure(out, "budgets", "Decode rate against the budget, tokens/s", 226);
    draw_rates(out, points, n, (double)page->placement->budget.vram / mib / 1024, 1e6 / page->placement->decode_us);
    close_figure(out);
    fputs("<p>", out);
    key(out, "moved", "this plan");
    fputs("</p>\n<table><tr><th>budget</th><th>decode tokens/s</th><th>prefill tokens/s</th></tr>\n", out);
    for (uint32_t i = 0; i < n; i++) {
        fprintf(out, "<tr><td>%g GiB</td>", points[i].gib);
        if (points[i].decode > 0)
            fprintf(out, "<td>%.2f</td><td>%.0f</td></tr>\n", points[i].decode, points[i].prefill);
        else
            fputs("<td>too small</td><td></td></tr>\n", out);
    }
    fputs("</table></section>\n", out);
    return ATSI_OK;
}
