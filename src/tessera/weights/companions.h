#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "tessera/config/run_config.h"
#include "tessera/models/hugging_face_config.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// What a Hugging Face directory says beside its weights and its tokenizer, and a model's users go
// by: how long texts may be, what ends them, how a conversation is written. A checkpoint that comes
// of such a directory keeps these files, and what is exported from it has them again.

// config.json, generation_config.json, tokenizer_config.json, special_tokens_map.json and
// chat_template.jinja of a directory, those that there are.
class Companions {
 public:
  // Errors: kInvalidData naming one that a link takes from outside the directory's repository
  // (base/repository.h), that is larger than such files are, or not what its name says.
  explicit Companions(const std::filesystem::path& source);

  // Writes them to a folder in `directory`, a checkpoint's or a run's. Errors: kDeviceError.
  void keep(const std::filesystem::path& directory) const;

 private:
  std::map<std::string, std::string> files_;
};

// Keeps them for a run whose model.weights are such a directory, or a checkpoint that has kept
// some, if the tokenizer there is the run's, and once: the directory may be gone when the run goes
// on.
void keep_companions(const RunConfig& config,
                     const std::filesystem::path& run_dir,
                     const std::string& tokenizer_checksum);

// The files of an export beside weights and tokenizer.
class ExportCompanions {
 public:
  // `facts` become those of the directory that the weights came from: its tokens that begin and end
  // a text, unless the run was given others (tokenizer.eos), and its length where that is more. A
  // run of conversations adds the token that ends an answer. Errors: kInvalidData.
  ExportCompanions(const std::filesystem::path& checkpoint,
                   const RunConfig& config,
                   const std::optional<Tokenizer>& tokenizer,
                   HuggingFaceFacts& facts);

  // All but config.json. Errors: as of Companions.
  void write(const std::filesystem::path& directory) const;

 private:
  std::optional<std::string> kept(const std::string& name) const;
  bool has_own_eos() const;
  std::string with_marks(const std::string& text, bool is_config) const;
  std::string tokenizer_config() const;
  std::string generation_config(const std::string& text) const;

  std::optional<std::filesystem::path> kept_;
  const std::optional<Tokenizer>& tokenizer_;
  const HuggingFaceFacts& facts_;
  std::string chat_template_;  // of a run of conversations; else empty
};

}  // namespace tessera
