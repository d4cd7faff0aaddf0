#include "tessera/tokenizer/sentencepiece/model_facts.h"

#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Numbers of sentencepiece_model.proto.
constexpr std::uint64_t kTrainerSpec = 2;
constexpr std::uint64_t kNormalizerSpec = 3;
constexpr std::uint64_t kModelType = 3;
constexpr std::uint64_t kBpe = 2;
constexpr std::uint64_t kWhitespaceAsSuffix = 24;
constexpr std::uint64_t kName = 1;
constexpr std::uint64_t kCharsmap = 2;
constexpr std::uint64_t kAddDummyPrefix = 3;
constexpr std::uint64_t kRemoveExtraWhitespaces = 4;
constexpr std::uint64_t kEscapeWhitespaces = 5;

// Not of the library: its fields from 200 on are anybody's.
constexpr std::uint64_t kAddedTokens = 54'321;

struct Field {
  std::uint64_t number;
  std::uint64_t value;     // of an integer
  std::string_view bytes;  // of a string or message
};

// The fields of a protocol buffer's message, from front to back.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }

  std::size_t bytes_left() const { return rest_.size(); }

  Field next() {
    const std::uint64_t key = varint();
    Field field{.number = key >> 3U, .value = 0, .bytes = {}};
    switch (key & 7U) {
      case 0:
        field.value = varint();
        return field;
      case 1:
        take(8);
        return field;
      case 2:
        field.bytes = take(varint());
        return field;
      case 5:
        take(4);
        return field;
      default:
        fail(ErrorCode::kInvalidData, "the model has a field of wire type {}", key & 7U);
    }
  }

 private:
  std::string_view take(std::uint64_t size) {
    TESSERA_REQUIRE(size <= rest_.size(),
                    ErrorCode::kInvalidData,
                    "the model has a field of {} bytes where {} are left",
                    size,
                    rest_.size());
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    fail(ErrorCode::kInvalidData, "the model has an integer of more than 64 bits");
  }

  std::string_view rest_;
};

void read_trainer(std::string_view message, ModelFacts& facts) {
  for (MessageReader reader(message); !reader.at_end();) {
    const Field field = reader.next();
    if (field.number == kModelType) {
      facts.is_bpe = field.value == kBpe;
    } else if (field.number == kWhitespaceAsSuffix) {
      facts.whitespace_is_suffix = field.value != 0;
    }
  }
}

void read_normalizer(std::string_view message, ModelFacts& facts) {
  for (MessageReader reader(message); !reader.at_end();) {
    const Field field = reader.next();
    if (field.number == kName) {
      facts.rules = field.bytes;
    } else if (field.number == kCharsmap) {
      facts.has_rules = !field.bytes.empty();
    } else if (field.number == kAddDummyPrefix) {
      facts.adds_prefix = field.value != 0;
    } else if (field.number == kRemoveExtraWhitespaces) {
      facts.removes_extra_spaces = field.value != 0;
    } else if (field.number == kEscapeWhitespaces) {
      facts.escapes_spaces = field.value != 0;
    }
  }
}

}  // namespace

ModelFacts read_model_facts(std::string_view model) {
  ModelFacts facts;
  for (MessageReader reader(model); !reader.at_end();) {
    const Field field = reader.next();
    if (field.number == kTrainerSpec) {
      read_trainer(field.bytes, facts);
    } else if (field.number == kNormalizerSpec) {
      read_normalizer(field.bytes, facts);
    }
  }
  return facts;
}

std::string with_added_tokens(std::string_view model, std::string_view added) {
  constexpr unsigned kBytes = 2;
  std::string result(model);
  const auto put_varint = [&](std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) {
      result += static_cast<char>((value & 0x7FU) | 0x80U);
    }
    result += static_cast<char>(value);
  };
  put_varint(kAddedTokens << 3U | kBytes);
  put_varint(added.size());
  result += added;
  return result;
}

std::string added_tokens_of(std::string_view model) {
  std::string added;
  for (MessageReader reader(model); !reader.at_end();) {
    const Field field = reader.next();
    if (field.number == kAddedTokens) {
      added = field.bytes;
    }
  }
  return added;
}

std::string without_added_tokens(std::string_view model) {
  std::string rest;
  for (MessageReader reader(model); !reader.at_end();) {
    const std::size_t begin = model.size() - reader.bytes_left();
    const Field field = reader.next();
    if (field.number != kAddedTokens) {
      rest += model.substr(begin, model.size() - reader.bytes_left() - begin);
    }
  }
  return rest;
}

// Of a field that is there twice the later one counts, and messages are merged field by field.
std::string without_prefix(std::string_view model) {
  constexpr unsigned kVarint = 0;
  constexpr unsigned kBytes = 2;
  std::string result(model);
  for (const std::uint64_t byte : {kNormalizerSpec << 3U | kBytes,
                                   std::uint64_t{2},
                                   kAddDummyPrefix << 3U | kVarint,
                                   std::uint64_t{0}}) {
    result += static_cast<char>(byte);
  }
  return result;
}

}  // namespace tessera
