package org.apache.flink.runtime.state.ttl;

/** {@link TtlConformance} on checkpoints, with a working set that holds all rows. */
class CheckpointLargeWorkingSetTtlTest extends TtlConformance {
    CheckpointLargeWorkingSetTtlTest() {
        super("64mb", false);
    }
}
