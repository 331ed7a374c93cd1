// chat_prompt PLAN.atsp FORMAT: token ids of conversations, as a chat format ("": the plan's own) gives them to the model.
// Each line of standard input is a JSON array of {"role": "system"|"user"|"assistant", "content": TEXT}; its ids come out on one line.
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chat_render.h"
#include "runtime/model.h"

static enum atsi_status read_message(const cJSON *item, struct atsi_chat_message *m, struct atsi_error *err) {
    static const char *const roles[] = {"system", "user", "assistant"};
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItem(item, "role"));
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(item, "content"));
    for (int i = 0; role && text && i < ATSI_CHAT_N_ROLES; i++) {
        if (strcmp(role, roles[i]) != 0) continue;
        m->role = (enum atsi_chat_role)i;
        return atsi_bytes_append(&m->text, text, strlen(text), err);
    }
    return atsi_fail(err, ATSI_BAD_INPUT, "standard input: a message needs role and content");
}

static enum atsi_status print_prompt(const struct atsi_chat_format *format, const struct atsi_model *model,
                                     const struct atsi_chat_message *messages, size_t n, struct atsi_error *err) {
    struct atsi_token_list ids = {0};
    enum atsi_status status = atsi_chat_render(format, model->tokenizer, time(NULL), messages, n, &ids, err);
    for (size_t i = 0; status == ATSI_OK && i < ids.n_ids; i++) printf("%s%" PRIu32, i ? " " : "", ids.ids[i]);
    putchar('\n');
    atsi_token_list_free(&ids);
    return status;
}

static enum atsi_status render_line(const struct atsi_chat_format *format, const struct atsi_model *model,
                                    const char *line, struct atsi_error *err) {
    cJSON *conversation = cJSON_Parse(line);
    size_t n = (size_t)cJSON_GetArraySize(conversation), n_read = 0;
    struct atsi_chat_message *messages = calloc(n + 1, sizeof *messages);
    enum atsi_status status = messages ? ATSI_OK : atsi_fail(err, ATSI_FAILED, "out of memory");
    const cJSON *item;
    cJSON_ArrayForEach(item, conversation) if (status == ATSI_OK) status = read_message(item, &messages[n_read++], err);
    if (status == ATSI_OK) status = print_prompt(format, model, messages, n, err);
    for (size_t i = 0; i < n_read; i++) atsi_chat_message_free(&messages[i]);
    free(messages);
    cJSON_Delete(conversation);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: chat_prompt PLAN.atsp FORMAT < a JSON array of messages a line\n");
        return ATSI_BAD_INPUT;
    }
    struct atsi_error err = {.text = ""};
    struct atsi_model model;
    char *line = NULL;
    size_t line_cap = 0;
    enum atsi_status status = atsi_model_open(&model, argv[1], &err);
    const char *name = *argv[2] ? argv[2] : model.plan.chat_format;
    const struct atsi_chat_format *format = atsi_chat_format_find(name);
    if (status == ATSI_OK && (!model.tokenizer || !format))
        status = atsi_fail(&err, ATSI_BAD_INPUT, "no tokenizer, or no chat format \"%s\"", name);
    while (status == ATSI_OK && getline(&line, &line_cap, stdin) >= 0) status = render_line(format, &model, line, &err);
    if (status != ATSI_OK) fprintf(stderr, "chat_prompt: %s\n", err.text);
    free(line);
    atsi_model_close(&model);
    return (int)status;
}
