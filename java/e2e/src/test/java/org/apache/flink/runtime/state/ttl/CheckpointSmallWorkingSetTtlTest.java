package org.apache.flink.runtime.state.ttl;

/** {@link TtlConformance} on checkpoints, with a working set that holds few rows. */
class CheckpointSmallWorkingSetTtlTest extends TtlConformance {
    CheckpointSmallWorkingSetTtlTest() {
        super("64kb", false);
    }
}
