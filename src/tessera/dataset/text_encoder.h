#pragma once

#include "tessera/config/run_config.h"
#include "tessera/data/encode_files.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// The tokenizer as the data needs it, its marks around each document. Borrows `tokenizer`.
TextEncoder text_encoder(const Tokenizer& tokenizer);

// The same for conversations. Errors: as ChatTemplate.
TextEncoder chat_encoder(const Tokenizer& tokenizer, ChatTemplateName name);

// Says what files disagree about where they name the marks, and, unless somebody chose its EOS,
// warns of a tokenizer without.
void log_marks(const Tokenizer& tokenizer, bool is_chosen = false);

}  // namespace tessera
