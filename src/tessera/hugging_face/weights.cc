#include "tessera/hugging_face/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"
#include "tessera/base/log.h"
#include "tessera/base/repository.h"
#include "tessera/checkpoint/read_files.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/hugging_face/convert_elements.h"
#include "tessera/models/family.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_weight(const HuggingFaceFiles::Tensor& tensor) {
  return tensor.data != nullptr &&
         (tensor.data->dtype == DType::kF32 || tensor.data->dtype == DType::kBF16 ||
          tensor.data->dtype == DType::kF16);
}

// Tensors that the model has no use for. Masks are passed over.
void add_extras(const HuggingFaceFiles& files,
                const std::set<std::string>& wanted,
                const ModelSection& section,
                std::vector<std::string>& problems) {
  const ModelFamily& family = model_family(section.name);
  for (const auto& [plain, tensor] : files.tensors()) {
    if (!wanted.contains(plain) && !family.is_extra(section, tensor.name)) {
      problems.push_back(format("{}: {} is none of the model's", files.place(tensor), tensor.type));
    }
  }
  for (const auto& [plain, name] : files.absent()) {
    if (!wanted.contains(plain) && !family.is_extra(section, name)) {
      problems.push_back(
          format("{}: tensor '{}' is none of the model's", files.index().string(), name));
    }
  }
}

// A head that config.json ties to the embedding, and that is in the files all the same, must be its
// copy: another one would be lost without a word.
void check_tied_head(const HuggingFaceFiles& files,
                     const HuggingFaceWeight& embedding,
                     std::vector<std::string>& problems) {
  const auto head = files.tensors().find("lm_head.weight");
  const auto first = files.tensors().find(files.plain_name(embedding.name));
  if (head == files.tensors().end() || first == files.tensors().end() ||
      !is_weight(first->second)) {
    return;
  }
  const HuggingFaceFiles::Tensor& tied = first->second;
  const HuggingFaceFiles::Tensor& found = head->second;
  if (found.type != tied.type || !std::ranges::equal(found.data->data, tied.data->data)) {
    problems.push_back(format("{}: {} is not that of '{}' ({}), to which config.json ties it",
                              files.place(found),
                              found.type,
                              tied.name,
                              tied.type));
  }
}

void require_no_problems(const std::vector<std::string>& problems, const std::string& what) {
  if (problems.empty()) {
    return;
  }
  constexpr std::size_t kMost = 100;  // of which any says what is wrong
  std::string text;
  for (const std::string& problem : std::span(problems).first(std::min(problems.size(), kMost))) {
    text += "\n  " + problem;
  }
  if (problems.size() > kMost) {
    text += format("\n  and {} more", problems.size() - kMost);
  }
  fail(ErrorCode::kInvalidData, "{}:{}", what, text);
}

// Takes the bytes of elements as they come from a file, and puts them as `to` where they belong.
class ElementSink {
 public:
  // The next element goes `stride` bytes further.
  ElementSink(DType from, DType to, std::byte* out, std::int64_t stride)
      : from_(from), to_(to), out_(out), stride_(stride) {}

  void operator()(std::span<const std::byte> bytes) {
    const std::size_t size = size_bytes(from_);
    // An element that the last bytes cut in two.
    while (num_held_ > 0 && !bytes.empty()) {
      held_[num_held_++] = bytes.front();
      bytes = bytes.subspan(1);
      if (num_held_ == size) {
        put(held_.data(), 1);
        num_held_ = 0;
      }
    }
    put(bytes.data(), bytes.size() / size);
    for (const std::byte rest : bytes.subspan(bytes.size() / size * size)) {
      held_[num_held_++] = rest;
    }
  }

 private:
  void put(const std::byte* bytes, std::size_t count) {
    if (from_ == to_) {
      copy(bytes, count);
      return;
    }
    convert_elements(
        {.dtype = from_, .data = bytes}, count, {.dtype = to_, .data = out_, .stride = stride_});
    out_ += static_cast<std::int64_t>(count) * stride_;
  }

  void copy(const std::byte* bytes, std::size_t count) {
    const std::size_t size = size_bytes(from_);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(out_, bytes + i * size, size);
      out_ += stride_;
    }
  }

  DType from_;
  DType to_;
  std::byte* out_;
  std::int64_t stride_;
  std::array<std::byte, 4> held_ = {};
  std::size_t num_held_ = 0;
};

// The segments of one read.
class Segments {
 public:
  Segments(const HuggingFaceWeight& weight,
           std::size_t part,
           DType dtype,
           std::int64_t offset,
           const WeightRead& read)
      : weight_(weight),
        part_(part),
        dtype_(dtype),
        offset_(offset),
        read_(read),
        element_(static_cast<std::int64_t>(size_bytes(read.dtype))),
        end_(read.first + std::ssize(read.out) / element_) {}

  void add_to(std::vector<FileRead::Segment>& segments) {
    const std::int64_t columns = weight_.columns();
    const std::int64_t known = std::max(weight_.part_rows(part_) * columns, read_.first);
    if (end_ > known) {
      std::ranges::fill(
          read_.out.subspan(static_cast<std::size_t>((known - read_.first) * element_)),
          std::byte{0});
      end_ = known;
    }
    if (weight_.transposed) {
      for (std::int64_t column = 0; column < columns; ++column) {
        add_column(column, segments);
      }
      return;
    }
    for (std::int64_t at = read_.first; at < end_;) {
      const std::int64_t row = at / columns;
      const std::int64_t theirs = row_of(row);
      std::int64_t stop = row + 1;
      while (stop * columns < end_ && row_of(stop) == theirs + (stop - row)) {
        ++stop;
      }
      const std::int64_t next = std::min(stop * columns, end_);
      add(theirs * columns + at % columns, at, next - at, 1, segments);
      at = next;
    }
  }

 private:
  std::int64_t row_of(std::int64_t row) const {
    return their_row(weight_, {.part = part_, .row = row});
  }

  // Our column is a row of the file.
  void add_column(std::int64_t column, std::vector<FileRead::Segment>& segments) const {
    const std::int64_t columns = weight_.columns();
    const auto first_row = [&](std::int64_t at) {
      return std::max<std::int64_t>(at - column + columns - 1, 0) / columns;
    };
    const std::int64_t end = first_row(end_);
    for (std::int64_t row = first_row(read_.first); row < end;) {
      const std::int64_t theirs = row_of(row);
      std::int64_t stop = row + 1;
      while (stop < end && row_of(stop) == theirs + (stop - row)) {
        ++stop;
      }
      add(column * weight_.rows() + theirs, row * columns + column, stop - row, columns, segments);
      row = stop;
    }
  }

  // `count` elements of the file from `theirs` on, which are ours from `at` on, `stride` apart.
  void add(std::int64_t theirs,
           std::int64_t at,
           std::int64_t count,
           std::int64_t stride,
           std::vector<FileRead::Segment>& segments) const {
    const auto size = static_cast<std::int64_t>(size_bytes(dtype_));
    const auto out = read_.out.subspan(static_cast<std::size_t>((at - read_.first) * element_));
    FileRead::Segment segment{.offset = offset_ + theirs * size};
    if (dtype_ == read_.dtype && stride == 1) {
      segment.out = out.first(static_cast<std::size_t>(count * element_));
    } else {
      segment.count = count * size;
      segment.take = ElementSink(dtype_, read_.dtype, out.data(), stride * element_);
    }
    segments.push_back(std::move(segment));
  }

  const HuggingFaceWeight& weight_;
  std::size_t part_;
  DType dtype_;
  std::int64_t offset_;  // of the tensor in its file
  const WeightRead& read_;
  std::int64_t element_;
  std::int64_t end_;
};

}  // namespace

HuggingFaceModel read_hugging_face_model(const fs::path& directory) {
  const fs::path path = directory / "config.json";
  std::error_code error;
  TESSERA_REQUIRE(fs::exists(path, error),
                  ErrorCode::kInvalidConfig,
                  "{} has no config.json, expected a directory in Hugging Face's form; of a "
                  "checkpoint `tessera checkpoint export` makes one",
                  directory.string());
  return hugging_face_model(HuggingFaceConfig(read_file(path), path.string()));
}

namespace {

// What of a directory transformers would use to continue a text, and nothing here does.
void warn_of_unused_files(const fs::path& directory) {
  constexpr std::array kHowToContinue = {"temperature",
                                         "top_k",
                                         "top_p",
                                         "min_p",
                                         "typical_p",
                                         "repetition_penalty",
                                         "no_repeat_ngram_size",
                                         "stop_strings",
                                         "suppress_tokens",
                                         "begin_suppress_tokens",
                                         "bad_words_ids",
                                         "forced_bos_token_id",
                                         "forced_eos_token_id"};
  const fs::path generation = directory / "generation_config.json";
  const nlohmann::json json = read_json_object(generation);
  std::string keys;
  for (const char* const key : kHowToContinue) {
    if (json.contains(key) && !json[key].is_null()) {
      keys += (keys.empty() ? "" : ", ") + std::string(key);
    }
  }
  if (!keys.empty()) {
    log_info(format("{}: {}: how texts are continued is said by the options of `tessera generate`",
                    generation.string(),
                    keys));
  }
  std::error_code error;
  if (const fs::path adapter = directory / "adapter_config.json"; fs::exists(adapter, error)) {
    log_warning(
        format("{}: the adapter that this file tells of is not applied to the weights beside "
               "it: merge it into them first",
               adapter.string()));
  }
}

}  // namespace

void warn_of_oddities(const fs::path& directory, const HuggingFaceModel& model) {
  warn_of_unused_files(directory);
  for (const std::string& key : model.unknown_keys) {
    log_warning(format("{}, which no model here has a use for: it is passed over", key));
  }
  if (has_stale_index(directory)) {
    log_warning(format("{}: the weights are those of {}, as transformers choose; {} is passed over",
                       directory.string(),
                       kSingleFile,
                       kIndexFile));
  }
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const auto end = leads_out(directory, entry.path().filename());
    if (end && entry.is_regular_file(error)) {
      log_warning(format("{} is a link to {}, which is not part of {}",
                         entry.path().string(),
                         end->string(),
                         directory.string()));
    }
  }
}

HuggingFaceWeights::HuggingFaceWeights(const fs::path& directory, const ModelSection& section)
    : weights_(model_family(section.name).hugging_face_weights(section)),
      files_(directory, model_family(section.name).weight_prefix) {
  place(directory, section);
}

void HuggingFaceWeights::place(const fs::path& directory, const ModelSection& section) {
  std::vector<std::string> problems = files_.problems();
  bool is_exact_in_bf16 = true;
  std::set<std::string> wanted;
  for (const HuggingFaceWeight& weight : weights_) {
    const auto& name = *wanted.insert(files_.plain_name(weight.name)).first;
    const auto at = files_.tensors().find(name);
    if (at == files_.tensors().end()) {
      if (!files_.absent().contains(name)) {
        problems.push_back(format("{}: tensor '{}' is missing, expected {}",
                                  directory.string(),
                                  weight.name,
                                  format_shape(weight.shape)));
      }
      continue;
    }
    const HuggingFaceFiles::Tensor& tensor = at->second;
    if (!std::ranges::equal(tensor.shape, weight.shape) || !is_weight(tensor)) {
      problems.push_back(format("{}: found {}, expected F32, BF16 or F16 {}",
                                files_.place(tensor),
                                tensor.type,
                                format_shape(weight.shape)));
      continue;
    }
    is_exact_in_bf16 = is_exact_in_bf16 && tensor.data->dtype == DType::kBF16;
    for (std::size_t part = 0; part < weight.parts.size(); ++part) {
      places_[weight.parts[part].parameter] = {
          .weight = &weight, .part = part, .tensor = tensor.data, .file = tensor.file};
    }
  }
  add_extras(files_, wanted, section, problems);
  if (!wanted.contains("lm_head.weight")) {
    check_tied_head(files_, weights_.front(), problems);
  }
  require_no_problems(problems,
                      format("the weights of {} do not fit {}the model of its config.json",
                             directory.string(),
                             files_.problems().empty() ? "" : "its index or "));
  dtype_ = is_exact_in_bf16 ? DType::kBF16 : DType::kF32;
}

const HuggingFaceWeights::Place& HuggingFaceWeights::at(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  TESSERA_REQUIRE(found != places_.end(),
                  ErrorCode::kInvalidData,
                  "no weight of the Hugging Face directory is \"{}\" of the model",
                  parameter);
  return found->second;
}

std::span<const std::byte> HuggingFaceWeights::view(const std::string& parameter,
                                                    DType dtype) const {
  const Place& place = at(parameter);
  const bool is_as_ours = place.tensor->dtype == dtype && place.weight->parts.size() == 1 &&
                          place.weight->parts[0].rotary_rows == 0 && !place.weight->transposed;
  return is_as_ours ? place.tensor->data : std::span<const std::byte>();
}

FileSource HuggingFaceWeights::source(const std::string& parameter) const {
  const Place& place = at(parameter);
  return {.path = files_.files()[place.file].path,
          .size_bytes = std::ssize(files_.files()[place.file].content.bytes()),
          .offset = offset(place)};
}

std::int64_t HuggingFaceWeights::offset(const Place& place) const {
  return place.tensor->data.data() - files_.files()[place.file].content.bytes().data();
}

void HuggingFaceWeights::load(std::span<const WeightRead> reads) const {
  std::vector<FileRead> files;
  for (const HuggingFaceFiles::File& file : files_.files()) {
    files.push_back({.path = file.path, .size_bytes = std::ssize(file.content.bytes())});
  }
  for (const WeightRead& read : reads) {
    const Place& place = at(read.parameter);
    Segments(*place.weight, place.part, place.tensor->dtype, offset(place), read)
        .add_to(files[place.file].segments);
  }
  read_files(files);
}

}  // namespace tessera
