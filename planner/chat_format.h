// chat_format.h: which of the chat formats that the runtime renders a model was trained with.
#ifndef ATSI_PLANNER_CHAT_FORMAT_H
#define ATSI_PLANNER_CHAT_FORMAT_H

#include <stdbool.h>

#include "formats/base/str.h"

// Decides by the markers that the model's Jinja template writes: a name of runtime/chat_format.c, or "" for a template of another kind
// (or none: data NULL). The template is not evaluated.
const char *atsi_chat_format_detect(struct atsi_str chat_template);

// Whether the template states a system prompt where none is given that the format, which it was recognised as, leaves out: a page of
// instructions by date and place.
bool atsi_chat_format_omits_prompt(const char *format, struct atsi_str chat_template);

#endif
