#include "tessera/metrics/event_record.h"

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <utility>

namespace tessera {
namespace {

// Protobuf's wire types, and the fields of the messages that Tessera writes.
enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::uint64_t kEventWallTime = 1;     // double
constexpr std::uint64_t kEventStep = 2;         // int64
constexpr std::uint64_t kEventVersion = 3;      // string
constexpr std::uint64_t kEventSummary = 5;      // Summary
constexpr std::uint64_t kEventSession = 7;      // SessionLog
constexpr std::uint64_t kSummaryValue = 1;      // Summary.Value, repeated
constexpr std::uint64_t kValueTag = 1;          // string
constexpr std::uint64_t kValueSimpleValue = 2;  // float
constexpr std::uint64_t kSessionStatus = 1;     // SessionLog.SessionStatus
constexpr std::uint64_t kSessionStart = 1;

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kCrcBytes = sizeof(std::uint32_t);

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    }
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

// A file of CRCs would otherwise have CRCs of CRCs. Source: core/lib/hash/crc32c.h
std::uint32_t masked_crc32c(std::string_view bytes) {
  constexpr std::uint32_t kDelta = 0xA282EAD8;
  return std::rotr(crc32c(bytes), 15) + kDelta;
}

template <std::unsigned_integral T>
void put_fixed(std::string& out, T value) {
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
    out += static_cast<char>((value >> (8 * byte)) & 0xFF);
  }
}

template <std::unsigned_integral T>
T get_fixed(std::string_view bytes) {
  T value = 0;
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
    value |= static_cast<T>(T{static_cast<unsigned char>(bytes[byte])} << (8 * byte));
  }
  return value;
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>((value & 0x7F) | 0x80);
  }
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint64_t field, WireType type) {
  put_varint(out, (field << 3) | type);
}

void put_bytes(std::string& out, std::uint64_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// The fields that every event has.
std::string start_event(double wall_time, std::int64_t step) {
  std::string event;
  put_key(event, kEventWallTime, kFixed64);
  put_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  if (step != 0) {  // what is zero is left out, as protobuf does it
    put_key(event, kEventStep, kVarint);
    put_varint(event, static_cast<std::uint64_t>(step));
  }
  return event;
}

std::string frame(std::string_view event) {
  std::string record;
  put_fixed(record, std::uint64_t{event.size()});
  put_fixed(record, masked_crc32c(record));
  record += event;
  put_fixed(record, masked_crc32c(event));
  return record;
}

// Takes a varint off the front; nothing where it does not end.
std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if ((byte & 0x80) == 0) {
      return value;
    }
  }
  return std::nullopt;
}

// How many bytes the field's value takes.
std::optional<std::uint64_t> value_bytes(std::uint64_t type, std::string_view& rest) {
  switch (type) {
    case kFixed64:
      return 8;
    case kFixed32:
      return 4;
    case kBytes:
      return take_varint(rest);
    default:
      return std::nullopt;
  }
}

struct EventHead {
  std::int64_t step = 0;
  bool has_summary = false;
};

// Nothing where it is no message.
std::optional<EventHead> read_event(std::string_view event) {
  EventHead head;
  while (!event.empty()) {
    const std::optional<std::uint64_t> key = take_varint(event);
    if (!key) {
      return std::nullopt;
    }
    const std::uint64_t field = *key >> 3;
    if ((*key & 7) == kVarint) {
      const std::optional<std::uint64_t> value = take_varint(event);
      if (!value) {
        return std::nullopt;
      }
      head.step = field == kEventStep ? static_cast<std::int64_t>(*value) : head.step;
      continue;
    }
    const std::optional<std::uint64_t> size = value_bytes(*key & 7, event);
    if (!size || *size > event.size()) {
      return std::nullopt;
    }
    head.has_summary = head.has_summary || field == kEventSummary;
    event.remove_prefix(static_cast<std::size_t>(*size));
  }
  return head;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~crc;
}

std::string version_record(double wall_time) {
  std::string event = start_event(wall_time, 0);
  put_bytes(event, kEventVersion, "brain.Event:2");
  return frame(event);
}

std::string session_start_record(double wall_time, std::int64_t step) {
  std::string session;
  put_key(session, kSessionStatus, kVarint);
  put_varint(session, kSessionStart);
  std::string event = start_event(wall_time, step);
  put_bytes(event, kEventSession, session);
  return frame(event);
}

std::string scalars_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, kValueTag, scalar.tag);
    put_key(value, kValueSimpleValue, kFixed32);
    put_fixed(value, std::bit_cast<std::uint32_t>(scalar.value));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string event = start_event(wall_time, step);
  put_bytes(event, kEventSummary, summary);
  return frame(event);
}

KeptRecords kept_records(std::string_view file, std::int64_t last_step) {
  KeptRecords kept;
  const auto damaged = [&] {
    kept.damage = kept.bytes;
    return kept;
  };
  for (;;) {
    const std::string_view rest = file.substr(kept.bytes);
    if (rest.size() < kLengthBytes + kCrcBytes) {
      return kept;
    }
    const std::string_view length_bytes = rest.substr(0, kLengthBytes);
    if (get_fixed<std::uint32_t>(rest.substr(kLengthBytes)) != masked_crc32c(length_bytes)) {
      return damaged();
    }
    const std::string_view body = rest.substr(kLengthBytes + kCrcBytes);
    const auto length = get_fixed<std::uint64_t>(length_bytes);
    if (body.size() < kCrcBytes || body.size() - kCrcBytes < length) {
      return kept;
    }
    const std::string_view bytes = body.substr(0, static_cast<std::size_t>(length));
    const std::optional<EventHead> event = read_event(bytes);
    if (get_fixed<std::uint32_t>(body.substr(bytes.size())) != masked_crc32c(bytes) || !event) {
      return damaged();
    }
    if (event->step > last_step) {
      return kept;
    }
    kept.has_steps = kept.has_steps || event->has_summary;
    kept.bytes += kLengthBytes + kCrcBytes + bytes.size() + kCrcBytes;
  }
}

}  // namespace tessera
