#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// What attention may take for granted (AttentionAttrs).
struct AttentionChoices {
  bool whole_rows = false;
  bool any_order = false;
  bool spread = false;
  bool by_heads = false;
  bool ring = false;

  friend bool operator==(const AttentionChoices&, const AttentionChoices&) = default;
};

// Tells the attention of a forward graph, and with it that of backward:
//   y = attention(..)  ->  y = attention{whole_rows, any_order, ..}(..)
Graph choose_attention(Graph graph, const AttentionChoices& choices);

}  // namespace tessera
