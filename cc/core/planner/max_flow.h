// Minimum cuts of directed graphs, for min_cut_keep_set.h.
//
// Model: Dinic's maximum flow in integers; the cut is what can be reached from the source then.
// Invariants: the flow never exceeds a capacity; at all nodes but the two ends as much comes in as
// goes out. Thread rule: one thread at a time.
// Complexity: O(nodes^2 edges) at worst, in practice some tens of passes over the edges.
// Source: Dinic (1970).
#ifndef COOP_CORE_PLANNER_MAX_FLOW_H_
#define COOP_CORE_PLANNER_MAX_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coop {

class FlowNetwork {
 public:
  // No capacity is larger.
  static constexpr int64_t kUnbounded = int64_t{1} << 60;

  explicit FlowNetwork(int32_t nodes) : first_(static_cast<size_t>(nodes), -1) {}

  // Returns the number of the edge.
  int32_t AddEdge(int32_t from, int32_t to, int64_t capacity);
  // Before Maximize.
  void SetCapacity(int32_t edge, int64_t capacity) {
    edges_[static_cast<size_t>(edge)].left = capacity;
  }
  // Finds a largest flow, once; what it is, at most kUnbounded.
  int64_t Maximize(int32_t source, int32_t sink);
  // After Maximize: whether the node is on the source's side of the minimum cut with fewest nodes
  // there.
  [[nodiscard]] bool IsOnSourceSide(int32_t node) const {
    return reached_[static_cast<size_t>(node)] != 0;
  }

 private:
  struct Edge {  // edges[i ^ 1] is the way back
    int32_t to;
    int32_t next;  // of the same node; -1: none
    int64_t left;  // capacity that no flow takes
  };

  bool FindDistances(int32_t source, int32_t sink);
  void Augment(int32_t source, int32_t sink);
  void FindSourceSide(int32_t source);

  std::vector<Edge> edges_;
  std::vector<int32_t> first_;     // by node
  std::vector<int32_t> distance_;  // by node: edges to the sink; -1: it cannot be reached
  std::vector<int32_t> current_;   // by node: the edge to try next
  std::vector<uint8_t> reached_;   // by node
  std::vector<int32_t> queue_;
  std::vector<int32_t> path_;  // edges
  int64_t flow_ = 0;
};

}  // namespace coop

#endif  // COOP_CORE_PLANNER_MAX_FLOW_H_
