#include "tessera/dataset/text_encoder.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/dataset/chat_template.h"
#include "tessera/infer/generate.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// All bytes, and these special tokens from id 256 on.
Tokenizer bytes_and(const std::vector<std::string>& special) {
  TokenizerSpec spec;
  spec.alphabet = Alphabet::kBytes;
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const std::string& content : special) {
    spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                          .content = content,
                          .special = true,
                          .normalized = false});
    spec.tokens.push_back(content);
  }
  return Tokenizer(spec);
}

// A document and a prompt begin with the same tokens.
TEST(TextEncoder, DocumentsHaveTheMarksOfPrompts) {
  using Ids = std::vector<std::int32_t>;
  const Tokenizer named = bytes_and({"<s>", "</s>"});
  EXPECT_EQ(text_encoder(named).before, Ids());
  EXPECT_EQ(text_encoder(named).eos, 257);
  EXPECT_EQ(prompt_tokens(named, "a", 8), Ids{'a'});
  EXPECT_EQ(prompt_tokens(named, "", 8), Ids{256});
  const Tokenizer putting = named.with_marks({.before = {256}, .eos = {257, 65}, .bos = 256});
  EXPECT_EQ(text_encoder(putting).before, Ids{256});
  EXPECT_EQ(text_encoder(putting).eos, 257);
  EXPECT_EQ(prompt_tokens(putting, "a", 8), (Ids{256, 'a'}));
  EXPECT_EQ(prompt_tokens(putting, "", 8), Ids{256});
  const Tokenizer one = bytes_and({"<|endoftext|>"});
  EXPECT_EQ(text_encoder(one).before, Ids());
  EXPECT_EQ(text_encoder(one).eos, 256);
  EXPECT_EQ(prompt_tokens(one, "a", 8), Ids{'a'});
  EXPECT_EQ(prompt_tokens(one, "", 8), Ids{256});
}

// A template that nobody chose is not put in the place of the model's own.
TEST(TextEncoder, AModelsOwnChatTemplateIsNotReplacedInSilence) {
  const Tokenizer plain = bytes_and({"<|im_start|>", "<|im_end|>"});
  const auto warning = [&](std::string own, ChatTemplateName name) {
    testing::internal::CaptureStderr();
    chat_encoder(plain.with_marks({.chat_template = std::move(own)}), name);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning("", ChatTemplateName::kAuto), "");
  EXPECT_EQ(
      warning(std::string(jinja_of(ChatTemplateName::kChatml)) + "\n", ChatTemplateName::kAuto),
      "");
  // The same, as others write it.
  for (const std::string own :
       {"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|im_start|>assistant\\n' }}{% endif %}",
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% "
        "endif %}{% for message in messages %}{{\"<|im_start|>\" + message[\"role\"] + \"\n\" + "
        "message[\"content\"] + \"<|im_end|>\" + \"\n\"}}{% endfor %}{% if add_generation_prompt "
        "%}{{ \"<|im_start|>assistant\n\" }}{% endif %}",
        "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + "
        "message.content + '<|im_end|>\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n  "
        "  {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"}) {
    EXPECT_EQ(warning(own, ChatTemplateName::kAuto), "") << own;
  }
  // With a system message of its own, or an end of line less.
  EXPECT_THAT(warning("{% for message in messages %}{{'<|im_start|>' + message['role'] + "
                      "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if "
                      "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
                      ChatTemplateName::kAuto),
              HasSubstr("conversations are written as chatml alone"));
  // With a blank after each message: it does not begin the line.
  EXPECT_THAT(warning("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
                      "message['content'] + '<|im_end|>\\n'}} {% endfor %}{% if "
                      "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
                      ChatTemplateName::kAuto),
              HasSubstr("conversations are written as chatml alone"));
  EXPECT_THAT(warning("{{ '<|im_start|>system' }}", ChatTemplateName::kAuto),
              HasSubstr("conversations are written as chatml alone"));
  const std::string other = "{% for m in messages %}[INST] {{m.content}} [/INST]{% endfor %}";
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { warning(other, ChatTemplateName::kAuto); }),
              HasSubstr("a chat template of its own, which does not write <|im_start|>"));
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(warning(other, ChatTemplateName::kChatml), "");
}

}  // namespace
}  // namespace tessera
