#pragma once

#include <span>

#include "tessera/ir/view.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_part.h"

namespace tessera {

// Where queries and keys stand, and in which document.
struct AttentionIds {
  View query_positions;  // (b, t) i32
  View key_positions;    // (b, s) i32
  View query_documents;  // (b, t) i32
  View key_documents;    // (b, s) i32
};

// The operands and results of attention by name.
struct AttentionOperands {
  View q;  // (b, t, heads, d)
  View k;  // (b, s, kv, d)
  View v;  // (b, s, kv, d)
  AttentionIds ids;
  View o;    // (b, t, heads, d)
  View lse;  // (b, heads, t) f32
};

struct AttentionBackwardOperands {
  View dout;  // (b, t, heads, d): the gradient that arrives
  View q;     // (b, t, heads, d)
  View k;     // (b, s, kv, d)
  View v;     // (b, s, kv, d)
  View o;     // (b, t, heads, d)
  View lse;   // (b, heads, t) f32
  AttentionIds ids;
  View dq;  // (b, t, heads, d)
  View dk;  // (b, s, kv, d)
  View dv;  // (b, s, kv, d)
};

// Those of a step over one part of the keys. Without data in the first step: what it goes on from.
struct AttentionPartOperands {
  AttentionOperands of;  // o is f32 but in the last step
  View carry_o;          // (b, t, heads, d) f32
  View carry_lse;        // (b, heads, t) f32
};

struct AttentionPartBackwardOperands {
  AttentionBackwardOperands of;  // dq, dk and dv are f32
  View carry;                    // (b, t, heads, d) f32
};

// The only places that know the order of operands and results.
AttentionPartOperands by_name(const AttentionPartAttrs& attrs, const Views& views);
AttentionPartBackwardOperands by_name(const AttentionPartBackwardAttrs& attrs, const Views& views);
AttentionOperands by_name(const AttentionAttrs& attrs, const Views& views);
AttentionBackwardOperands by_name(const AttentionBackwardAttrs& attrs, const Views& views);

}  // namespace tessera
