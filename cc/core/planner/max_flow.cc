#include "cc/core/planner/max_flow.h"

#include <algorithm>
#include <cstddef>

namespace coop {

int32_t FlowNetwork::AddEdge(int32_t from, int32_t to, int64_t capacity) {
  const auto edge = static_cast<int32_t>(edges_.size());
  int32_t& forth = first_[static_cast<size_t>(from)];
  edges_.push_back({to, forth, capacity});
  forth = edge;
  int32_t& back = first_[static_cast<size_t>(to)];
  edges_.push_back({from, back, 0});
  back = edge + 1;
  return edge;
}

int64_t FlowNetwork::Maximize(int32_t source, int32_t sink) {
  while (FindDistances(source, sink)) {
    current_ = first_;
    Augment(source, sink);
  }
  FindSourceSide(source);
  return flow_;
}

// From the sink, so that no path runs into a dead end at first.
bool FlowNetwork::FindDistances(int32_t source, int32_t sink) {
  distance_.assign(first_.size(), -1);
  distance_[static_cast<size_t>(sink)] = 0;
  queue_.assign(1, sink);
  for (size_t at = 0; at < queue_.size(); ++at) {
    const auto node = static_cast<size_t>(queue_[at]);
    for (int32_t e = first_[node]; e >= 0; e = edges_[static_cast<size_t>(e)].next) {
      const auto from = static_cast<size_t>(edges_[static_cast<size_t>(e)].to);
      if (distance_[from] >= 0 || edges_[static_cast<size_t>(e) ^ 1].left == 0) continue;
      distance_[from] = distance_[node] + 1;
      queue_.push_back(static_cast<int32_t>(from));
    }
  }
  return distance_[static_cast<size_t>(source)] >= 0;
}

// A blocking flow: along shortest paths until none is left.
void FlowNetwork::Augment(int32_t source, int32_t sink) {
  path_.clear();
  int32_t node = source;
  while (true) {
    if (node == sink) {
      int64_t least = kUnbounded;
      for (const int32_t e : path_) least = std::min(least, edges_[static_cast<size_t>(e)].left);
      flow_ = std::min(flow_ + least, kUnbounded);
      size_t full = path_.size();  // the first edge that is full now
      for (size_t k = path_.size(); k-- > 0;) {
        Edge& edge = edges_[static_cast<size_t>(path_[k])];
        edge.left -= least;
        edges_[static_cast<size_t>(path_[k]) ^ 1].left += least;
        if (edge.left == 0) full = k;
      }
      node = edges_[static_cast<size_t>(path_[full]) ^ 1].to;
      path_.resize(full);
      continue;
    }
    const auto index = static_cast<size_t>(node);
    int32_t& e = current_[index];
    while (e >= 0) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      if (edge.left > 0 && distance_[static_cast<size_t>(edge.to)] == distance_[index] - 1) break;
      e = edge.next;
    }
    if (e >= 0) {
      path_.push_back(e);
      node = edges_[static_cast<size_t>(e)].to;
    } else if (path_.empty()) {
      return;
    } else {
      // Nothing goes on from here.
      const int32_t last = path_.back();
      path_.pop_back();
      node = edges_[static_cast<size_t>(last) ^ 1].to;
      int32_t& before = current_[static_cast<size_t>(node)];
      before = edges_[static_cast<size_t>(before)].next;
    }
  }
}

void FlowNetwork::FindSourceSide(int32_t source) {
  reached_.assign(first_.size(), 0);
  reached_[static_cast<size_t>(source)] = 1;
  queue_.assign(1, source);
  for (size_t at = 0; at < queue_.size(); ++at) {
    int32_t e = first_[static_cast<size_t>(queue_[at])];
    for (; e >= 0; e = edges_[static_cast<size_t>(e)].next) {
      const Edge& edge = edges_[static_cast<size_t>(e)];
      uint8_t& reached = reached_[static_cast<size_t>(edge.to)];
      if (edge.left == 0 || reached != 0) continue;
      reached = 1;
      queue_.push_back(edge.to);
    }
  }
}

}  // namespace coop
