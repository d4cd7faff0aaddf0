#pragma once

#include "tessera/config/run_config.h"
#include "tessera/data/encode_files.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// The tokenizer as the data needs it. Borrows `tokenizer`. Long documents are cut after words where
// its pattern begins a pre-token there anyway and no added token reaches over such a place.
TextEncoder text_encoder(const Tokenizer& tokenizer);

// The same for conversations. Errors: as ChatTemplate.
TextEncoder chat_encoder(const Tokenizer& tokenizer, ChatTemplateName name);

}  // namespace tessera
