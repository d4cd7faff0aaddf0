#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tessera/ir/dtype.h"

namespace tessera {

// A tensor of a Hugging Face directory, made of one or several parameters of ours: a matrix (or a
// vector: one column) whose rows are those of its parts in another order, or, transposed, the
// matrix with these rows as columns.
struct HuggingFaceWeight {
  struct Part {
    std::string parameter;         // "layers.0.attention.wq.weight"
    std::int64_t rotary_rows = 0;  // of each head, that turn in pairs here and in halves there
    // Where parts lie one after the other:
    std::int64_t rows = 0;       // 0: as many as each of the others
    std::int64_t head_rows = 0;  // of a head; 0: all of the part
  };

  std::string name;  // "model.layers.0.self_attn.q_proj.weight"
  std::vector<Part> parts;
  std::vector<std::int64_t> shape;  // as in the file
  bool transposed = false;          // the file has (columns, rows)
  std::int64_t head_rows = 0;       // of one part that lie together, by turns; 0: all of it

  std::int64_t rows() const { return transposed ? shape[1] : shape[0]; }

  std::int64_t columns() const { return shape.size() == 1 ? 1 : transposed ? shape[0] : shape[1]; }

  // Of a part. A parameter may have more, which the file does not: padding of a vocabulary.
  std::int64_t part_rows(std::size_t part) const {
    return parts[part].rows > 0 ? parts[part].rows
                                : rows() / static_cast<std::int64_t>(parts.size());
  }
};

// What a number in a file may make this program list: far more than any model has.
inline constexpr std::int64_t kMaxLayers = 10'000;

// A row of a weight's part.
struct PartRow {
  std::size_t part = 0;
  std::int64_t row = 0;

  friend bool operator==(const PartRow&, const PartRow&) = default;
};

// Which of our rows is row `row` of the weight. We turn pairs of rows (2i, 2i + 1) of a head by a
// rotary angle, as Meta's Llama does; transformers turn (i, i + rotary_rows / 2).
PartRow our_row(const HuggingFaceWeight& weight, std::int64_t row);

// The inverse.
std::int64_t their_row(const HuggingFaceWeight& weight, const PartRow& ours);

// What config.json says beside the model's own sizes.
struct HuggingFaceFacts {
  DType dtype = DType::kF32;
  std::int64_t sequence_length = 0;    // the longest that the model was trained on
  std::vector<std::int32_t> bos = {};  // ids that begin a document: none or one, mostly
  std::vector<std::int32_t> eos = {};  // that end one
};

// The keys of a config.json, which stand in alphabetical order, as transformers write them.
class HuggingFaceConfigText {
 public:
  void add(std::string_view key, std::string_view json);
  void text(std::string_view key, std::string_view value);
  void number(std::string_view key, std::int64_t value);
  void real(std::string_view key, double value);  // with a point, as Python writes floats
  void flag(std::string_view key, bool value);
  void tokens(std::string_view key, const std::vector<std::int32_t>& ids);  // null, one, or a list
  void dtype(DType dtype);                                                  // "torch_dtype"

  std::string finish() const;

 private:
  std::map<std::string, std::string> values_;  // JSON
};

// "1.0", "1e-05"; and a list of these.
std::string python_float(double value);
std::string python_floats(const std::vector<double>& values);

// A config.json that was read: values by key, those of an object as "rope_scaling.factor". Keys
// that are null are not there. It remembers which keys were asked for: what nobody read and what
// changes a model's result must not be passed over.
class HuggingFaceConfig {
 public:
  // `path` is for messages. Errors: kInvalidData naming file and byte for what is not a JSON object
  // or has a key twice; kInvalidData naming the key, found and expected for the readers below.
  HuggingFaceConfig(std::string_view json, std::string path);

  bool has(std::string_view key) const { return find(key) != nullptr; }

  // Whether the key is there with null: families whose absent key means something else ask.
  bool is_null(std::string_view key) const { return nulls_.contains(key); }

  // Whether the rotary embedding is described in one object, "rope_parameters", as transformers 5
  // write it, and not under each family's own keys.
  bool has_rope_parameters() const { return has_rope_parameters_; }

  // Without a fallback the key must be there.
  std::int64_t size(std::string_view key,
                    std::optional<std::int64_t> fallback = std::nullopt) const;  // positive
  std::int64_t layers(std::string_view key) const;                               // 1 to kMaxLayers
  double real(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  // Of one id, or a list of them. None where the key is absent.
  std::vector<std::int32_t> tokens(std::string_view key) const;

  // A list of texts, or of numbers. None where the key is absent.
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<double> reals(std::string_view key) const;

  // Refuses the value of a key that this program has no model for.
  void require(bool known, std::string_view key, std::string_view expected) const;

  // That `key`, another name of `other`, is absent or has this value too.
  void require_same(std::string_view key, double value, std::string_view other) const;

  // To be called when all is read that the family reads. Keys that nobody read are refused where
  // other models have them for what a model computes; those that no model here knows are returned,
  // as "\"key\" at byte 9: found 3"; those that leave the result alone, and what is false or empty,
  // are passed over.
  std::vector<std::string> check_unread() const;

  const std::string& path() const { return path_; }

 private:
  // What no reader takes, a list of texts for one, as JSON.
  struct Other {
    std::string json;
  };

  using Field =
      std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, Other>;

  std::int64_t whole(std::string_view key, std::int64_t max) const;

  const Field* find(std::string_view key) const;
  std::string found(std::string_view key) const;
  std::string place(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

  std::string text_;  // of the file
  std::string path_;
  std::map<std::string, Field, std::less<>> values_;
  std::set<std::string, std::less<>> nulls_;
  mutable std::set<std::string, std::less<>> asked_;
  bool has_rope_parameters_ = false;
};

}  // namespace tessera
