#pragma once

#include "tessera/config/run_config.h"
#include "tessera/data/encode_files.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// The tokenizer as the data needs it. Borrows `tokenizer`. One token for both ends (GPT-2's
// "<|endoftext|>") is behind each document alone, as others lay such data out.
TextEncoder text_encoder(const Tokenizer& tokenizer);

// The same for conversations. Errors: as ChatTemplate.
TextEncoder chat_encoder(const Tokenizer& tokenizer, ChatTemplateName name);

}  // namespace tessera
