package org.apache.flink.runtime.state.ttl;

/** {@link TtlConformance} on savepoints, with a working set that holds all rows. */
class SavepointLargeWorkingSetTtlTest extends TtlConformance {
    SavepointLargeWorkingSetTtlTest() {
        super("64mb", true);
    }
}
