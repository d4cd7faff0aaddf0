#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/hugging_face/files.h"
#include "tessera/ir/dtype.h"
#include "tessera/models/family.h"
#include "tessera/models/hugging_face_weight.h"
#include "tessera/models/model_section.h"
#include "tessera/state/weight_source.h"

namespace tessera {

// Errors: kInvalidData naming file, key, found and expected.
HuggingFaceModel read_hugging_face_model(const std::filesystem::path& directory);

// Warns of what is read over in a directory whose weights are taken, or may not be what its owner
// means: keys of config.json that nothing here knows, an index beside model.safetensors, and links
// to files that are not of the directory's repository.
void warn_of_oddities(const std::filesystem::path& directory, const HuggingFaceModel& model);

// The weights of a Hugging Face directory as the parameters that they are to us: model.safetensors,
// else the files of model.safetensors.index.json, mapped.
class HuggingFaceWeights final : public WeightSource {
 public:
  // Reads headers only. Errors: kInvalidData for an index that is none and, all in one message, for
  // every file that is missing or damaged, and every tensor that is missing, not where the index
  // says, that the model does not have, or whose shape or dtype it cannot take.
  HuggingFaceWeights(const std::filesystem::path& directory, const ModelSection& section);

  // The shortest type that holds every weight exactly: bf16, or f32.
  DType dtype() const { return dtype_; }

  // The whole parameter where it lies in a file just as it is in `dtype`; else empty.
  std::span<const std::byte> view(const std::string& parameter, DType dtype) const;

  // Where the bytes of its view come from.
  FileSource source(const std::string& parameter) const;

  void load(std::span<const WeightRead> reads) const override;

  void read(const WeightRead& read) const override { load({&read, 1}); }

 private:
  // Where a parameter is.
  struct Place {
    const HuggingFaceWeight* weight = nullptr;
    std::size_t part = 0;
    const SafetensorsTensor* tensor = nullptr;
    std::size_t file = 0;
  };

  void place(const std::filesystem::path& directory, const ModelSection& section);
  const Place& at(const std::string& parameter) const;
  std::int64_t offset(const Place& place) const;  // in its file

  std::vector<HuggingFaceWeight> weights_;
  HuggingFaceFiles files_;
  std::map<std::string, Place> places_;
  DType dtype_ = DType::kBF16;
};

}  // namespace tessera
